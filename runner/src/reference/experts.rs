//! Routed experts in plain f32. Row `r` of what they make is number `r % K` of token `r / K`.

use super::ops;

/// The `chosen` largest of each row of `logits`, `[T, count]`, the largest first and of equals the first, and their
/// shares of a softmax. `experts` and `shares` are `[T, chosen]`.
pub(super) fn route(
    logits: &[f32],
    count: usize,
    chosen: usize,
    normalised: bool,
    experts: &mut [f32],
    shares: &mut [f32],
) {
    let outputs = experts.chunks_mut(chosen).zip(shares.chunks_mut(chosen));
    for (logits, (experts, shares)) in logits.chunks(count).zip(outputs) {
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        let largest = logits[order[0]];
        for ((expert, share), &i) in experts.iter_mut().zip(&mut *shares).zip(&order) {
            *expert = i as f32;
            *share = (logits[i] - largest).exp();
        }
        let sum: f32 = if normalised {
            shares.iter().sum()
        } else {
            logits.iter().map(|logit| (logit - largest).exp()).sum()
        };
        for share in shares {
            *share /= sum;
        }
    }
}

/// `out[r, n] = sum_k x[r, k] * weight[e, n, k] + bias[e, n]`, where `e` is row `r`'s expert; `out` is `[T * K, rows]`.
///
/// Where `x` has fewer rows than there are experts in `experts`, those of one token share a row. `weight_row(n, row)`
/// writes row `n` of all experts' rows.
pub(super) fn matmul(
    x: &[f32],
    experts: &[f32],
    [rows, columns]: [usize; 2],
    weight_row: impl Fn(usize, &mut [f32]) + Sync,
    bias: Option<&[f32]>,
    out: &mut [f32],
) {
    let sharing = experts.len() / (x.len() / columns);
    let mut used: Vec<usize> = experts.iter().map(|&expert| index(expert)).collect();
    used.sort_unstable();
    used.dedup();
    // Expert by expert, so that its rows are decoded once.
    for expert in used {
        let of_expert =
            (0..experts.len()).filter(|&r| index(experts[r]) == expert).collect::<Vec<_>>();
        let row_of = |r: usize| &x[r / sharing * columns..][..columns];
        let inputs: Vec<f32> = of_expert.iter().flat_map(|&r| row_of(r)).copied().collect();
        let mut outputs = vec![0.0; of_expert.len() * rows];
        let bias = bias.map(|bias| &bias[expert * rows..][..rows]);
        let row = |n: usize, row: &mut [f32]| weight_row(expert * rows + n, row);
        ops::matmul(&inputs, columns, rows, row, bias, &mut outputs);
        for (&r, output) in of_expert.iter().zip(outputs.chunks(rows)) {
            out[r * rows..][..rows].copy_from_slice(output);
        }
    }
}

/// `out[t, :] = sum_k shares[t, k] * x[t * K + k, :]`; rows are `width` wide.
pub(super) fn mix(x: &[f32], shares: &[f32], width: usize, out: &mut [f32]) {
    let chosen = shares.len() / (out.len() / width);
    let tokens = x.chunks(chosen * width).zip(shares.chunks(chosen));
    for (out, (x, shares)) in out.chunks_mut(width).zip(tokens) {
        out.fill(0.0);
        for (x, share) in x.chunks(width).zip(shares) {
            ops::add(out, x, *share);
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "numbers of experts, made by `route`"
)]
fn index(expert: f32) -> usize {
    expert as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_are_chosen_and_weighed() {
        let logits = [0.0, 2f32.ln(), 0.0, 3f32.ln(), 1.0, 1.0, 1.0, 1.0];
        let (mut experts, mut shares) = ([0.0; 4], [0.0; 4]);
        route(&logits, 4, 2, false, &mut experts, &mut shares);
        let close = |found: &[f32], expected: &[f32]| {
            let mut pairs = found.iter().zip(expected);
            assert!(pairs.all(|(a, b)| (a - b).abs() < 1e-6), "{found:?} {expected:?}");
        };
        close(&experts, &[3.0, 1.0, 0.0, 1.0]);
        close(&shares, &[3.0 / 7.0, 2.0 / 7.0, 0.25, 0.25]);
        route(&logits, 4, 2, true, &mut experts, &mut shares);
        close(&shares, &[0.6, 0.4, 0.5, 0.5]);
    }
}
