//! What a column's rounding must answer for: the errors of the columns coded before it.
//!
//! With `H = R R^T`, `R` upper triangular, the loss of a row with errors `e` is
//! `e^T H e = sum_i (R_ii (e_i + sum_{j<i} e_j R_ji / R_ii))^2`. So when column `i` is coded, after all `j < i`, the
//! least of its term is had by rounding the target `w_i + sum_j e_j R_ji / R_ii`, and its distance from that target
//! costs `R_ii^2`. This is the paper's update of all later weights, each taken when its turn comes and without
//! inverting anything (Chee et al. 2023, "QuIP", theorem 6; Chen et al. 2025, "The Geometry of LLM Quantization").

use crate::calibration::{Hessian, start};
use crate::quant::Grouped;

/// Share of the mean diagonal that is added to the diagonal, as in the paper.
const DAMPING: f64 = 0.01;
/// How often damping may grow tenfold before the sums are given up as useless.
const ATTEMPTS: i32 = 6;
/// Columns that are factored together.
const BLOCK: usize = 64;

/// The order in which the columns of a matrix are coded, and how errors pass on.
#[derive(Clone, Debug)]
pub struct Feedback {
    /// The column in each place, group by group.
    pub(super) order: Vec<usize>,
    /// For each group in the order of its turn, the places of its columns.
    pub(super) groups: Vec<std::ops::Range<usize>>,
    /// For each place, what each place before it passes on: a lower triangle without diagonal, row after row.
    shares: Vec<f32>,
    /// For each place, what a squared distance from the target costs.
    pub(super) costs: Vec<f32>,
}

impl Feedback {
    /// `None` where the sums say nothing: all zero, or not finite.
    ///
    /// Columns that the text never moves are kept, as any other text may move them; damping lets nothing pass to or
    /// from them. (The paper sets them to zero.)
    pub fn of(hessian: &Hessian, layout: Grouped) -> Option<Self> {
        let columns = hessian.columns();
        let mean = (0..columns).map(|i| hessian.get(i, i)).sum::<f64>() / columns as f64;
        if !(mean > 0.0 && mean.is_finite()) {
            return None;
        }
        let (order, groups) = order(hessian, layout.group as usize);
        let factor = (0..ATTEMPTS).find_map(|attempt| {
            let mut upper = Vec::with_capacity(start(columns, columns));
            for (i, &row) in order.iter().enumerate() {
                upper.extend(order[i..].iter().map(|&column| hessian.get(row, column)));
                upper[start(columns, i)] += DAMPING * 10f64.powi(attempt) * mean;
            }
            factorise(&mut upper, columns).then_some(upper)
        })?;
        #[expect(clippy::cast_possible_truncation, reason = "shares of f32 errors")]
        let narrow = |x: f64| x as f32;
        let diagonal = |i| factor[start(columns, i)];
        let mut shares = Vec::with_capacity(columns * columns.saturating_sub(1) / 2);
        for i in 0..columns {
            let inverse = 1.0 / diagonal(i);
            shares.extend((0..i).map(|j| narrow(factor[start(columns, j) + i - j] * inverse)));
        }
        // Only their ratios matter: near 1 they neither overflow nor underflow.
        let costs = (0..columns).map(|i| narrow(diagonal(i) * diagonal(i) / mean)).collect();
        Some(Self { order, groups, shares, costs })
    }

    /// What each place before `place` passes on to it.
    #[inline]
    pub(super) fn shares(&self, place: usize) -> &[f32] {
        &self.shares[place * place.saturating_sub(1) / 2..][..place]
    }

    /// Columns of the matrix.
    pub fn columns(&self) -> usize {
        self.order.len()
    }
}

/// Groups of largest mean diagonal first, and so within each group: what matters most is coded while most of the other
/// columns can still make up for it (the paper's `act-order`, held to whole groups so that each scale can be chosen
/// when the group's turn comes).
fn order(hessian: &Hessian, group: usize) -> (Vec<usize>, Vec<std::ops::Range<usize>>) {
    let columns = hessian.columns();
    let diagonal = |&column: &usize| hessian.get(column, column);
    let mut groups: Vec<Vec<usize>> = (0..columns)
        .step_by(group)
        .map(|first| {
            let mut group: Vec<usize> = (first..(first + group).min(columns)).collect();
            group.sort_by(|a, b| diagonal(b).total_cmp(&diagonal(a)));
            group
        })
        .collect();
    let mean = |group: &[usize]| group.iter().map(diagonal).sum::<f64>() / group.len() as f64;
    groups.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
    let mut end = 0;
    let places = groups.iter().map(|group| {
        let first = end;
        end += group.len();
        first..end
    });
    let places = places.collect();
    (groups.concat(), places)
}

/// Replaces an upper triangle `A`, row after row, by the `R` of `A = R R^T`; false where `A` is not positive definite.
///
/// From the last block of columns to the first: each is factored and then taken out of what lies before it.
fn factorise(a: &mut [f64], columns: usize) -> bool {
    let blocks = columns.div_ceil(BLOCK);
    for block in (0..blocks).rev() {
        let (first, end) = (block * BLOCK, ((block + 1) * BLOCK).min(columns));
        let row = |i: usize| start(columns, i);
        for j in (first..end).rev() {
            // The block's part of row `j` right of the diagonal is final.
            let tail: Vec<f64> = a[row(j) + 1..][..end - 1 - j].to_vec();
            let pivot = a[row(j)] - tail.iter().map(|r| r * r).sum::<f64>();
            if !(pivot > 0.0 && pivot.is_finite()) {
                return false;
            }
            let pivot = pivot.sqrt();
            a[row(j)] = pivot;
            for i in 0..j {
                let at = row(i) + j - i;
                let own = &a[at..][..end - j];
                a[at] = (own[0] - dot(&own[1..], &tail)) / pivot;
            }
        }
        for i in 0..first {
            let own: Vec<f64> = a[row(i) + first - i..][..end - first].to_vec();
            for l in i..first {
                let other = row(l) + first - l;
                let sum = dot(&own, &a[other..][..end - first]);
                a[row(i) + l - i] -= sum;
            }
        }
    }
    true
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<4>(), b.as_chunks::<4>());
    let mut sums = [0.0; 4];
    for (a, b) in a.iter().zip(b) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    sums.iter().sum::<f64>() + a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_multiplies_back() {
        let columns = 150;
        let value = |i: usize, j: usize| (((i * 31 + j * 17) % 23) as f64) / 23.0;
        let entry = |i: usize, j: usize| {
            let product: f64 = (0..columns).map(|k| value(i, k) * value(j, k)).sum();
            product + if i == j { 1.0 } else { 0.0 }
        };
        let mut a: Vec<f64> =
            (0..columns).flat_map(|i| (i..columns).map(move |j| entry(i, j))).collect();
        assert!(factorise(&mut a, columns));
        let r = |i: usize, j: usize| if j < i { 0.0 } else { a[start(columns, i) + j - i] };
        for i in 0..columns {
            for j in i..columns {
                let product: f64 = (0..columns).map(|k| r(i, k) * r(j, k)).sum();
                assert!((product - entry(i, j)).abs() < 1e-8, "{i}, {j}");
            }
        }
    }

    #[test]
    fn what_is_not_positive_definite_is_refused() {
        assert!(!factorise(&mut [1.0, 2.0, 1.0], 2));
        assert!(!factorise(&mut [f64::NAN, 2.0, 1.0], 2));
    }
}
