//! The least squared error that the layout allows, or very nearly.
//!
//! MLC's rule spends a scale on the largest magnitude and leaves the highest code unused. But a code stands for
//! `(code - zero) * scale` whatever the sign of the scale, so with `half = 2^(bits - 1)` the multiples
//! `-(half - 1)..=half` are available towards either side. A group's error is smallest for some `largest / steps`,
//! where `steps`, how many scales the largest value lies from zero, is near `half`. A few are tried:
//!
//! - For given codes `q` the best scale is `A / B` with `A = sum(w q)` and `B = sum(q q)`, and the error left is
//!   `sum(w w) - A A / B`: one pass over a group judges a candidate with its scale refitted.
//! - Whole numbers of steps find weights that lie on a lattice (trained for GGUF's Q4_0, say): one of them is right.
//!
//! The winner, rounded as it will be stored, must then beat MLC's scale in squared error.
//!
//! Eight candidates are judged together, one in each lane, so that nothing is summed across lanes: loops over lanes
//! vectorise without any leave to reorder, and the result is the same on every machine.

use super::Grid;
use super::mlc::Mlc;
use crate::dtype::Dtype;
use crate::quant::float::{nearest, nearest_code, round_to};
use crate::quant::group::Rule;

pub(super) const LANES: usize = 8;
pub(super) type Lanes = [f32; LANES];

/// Steps beyond `half` between and above the whole numbers, where most groups without a lattice have their best. A
/// third batch of eight would lower the error of gaussian weights by less than 0.1 %.
const BEYOND: Lanes = [-0.6, -0.25, 0.25, 0.5, 0.8, 1.1, 1.5, 2.0];

pub(in crate::quant) struct Best;

impl Rule for Best {
    #[inline(always)]
    fn choose(grid: &Grid, group: &[f32], codes: &mut [u8]) -> f32 {
        let largest = largest(group);
        if !largest.is_finite() {
            return Mlc::choose(grid, group, codes);
        }
        let levels = Levels::of(grid);
        if largest == 0.0 {
            codes.fill(levels.code(0.0));
            return 0.0;
        }
        // Squares of values near 1 neither overflow nor underflow. Powers of two change nothing else.
        let unit = PowerOfTwo::below(largest);
        let values = Values { group, factor: unit.inverse() };
        let refitted = levels.refit(values, largest * unit.inverse());
        let candidates = [
            stored_scale(grid.dtype, largest.abs() * unit.inverse() / levels.zero * unit.value()),
            levels.stored_scale(grid.dtype, refitted * unit.value()),
        ];
        let [of_mlc, of_refitted] =
            candidates.map(|scale| levels.squared_error(values, scale * unit.inverse()));
        let scale = candidates[usize::from(of_refitted < of_mlc)];
        levels.write(values, scale * unit.inverse(), codes);
        scale
    }
}

/// The scales around which a group's best is to be found, as they are stored.
pub(super) fn guesses(grid: &Grid, group: &[f32]) -> [Lanes; 2] {
    let levels = Levels::of(grid);
    let largest = largest(group);
    levels.steps().map(|steps| steps.map(|steps| levels.stored_scale(grid.dtype, largest / steps)))
}

/// The value of largest magnitude; not finite if any is not.
#[inline(always)]
fn largest(group: &[f32]) -> f32 {
    // With the sign moved to the lowest bit, the order of magnitudes is that of the bits.
    let key = group.iter().fold(0, |max, w| w.to_bits().rotate_left(1).max(max));
    f32::from_bits(key.rotate_right(1))
}

/// A scale as it is stored, held off zero, from which no value could be restored.
#[inline(always)]
fn stored_scale(dtype: Dtype, scale: f32) -> f32 {
    let smallest = match dtype.stored() {
        Dtype::Float16 => half::f16::from_bits(1).to_f32(),
        _ => half::bf16::from_bits(1).to_f32(),
    };
    let rounded = round_to(dtype.stored(), scale);
    if rounded == 0.0 { smallest } else { rounded }
}

/// A power of two whose inverse is one too, neither of them subnormal.
#[derive(Clone, Copy)]
struct PowerOfTwo {
    exponent: u32,
}

impl PowerOfTwo {
    /// The largest that is not above a magnitude, or nearly so at the ends of the range.
    fn below(x: f32) -> Self {
        Self { exponent: (x.abs().to_bits() >> 23).clamp(1, 253) }
    }

    fn value(self) -> f32 {
        f32::from_bits(self.exponent << 23)
    }

    fn inverse(self) -> f32 {
        f32::from_bits((254 - self.exponent) << 23)
    }
}

/// The values of a group times a factor.
#[derive(Clone, Copy)]
struct Values<'a> {
    group: &'a [f32],
    factor: f32,
}

impl Values<'_> {
    #[inline(always)]
    fn iter(&self) -> impl Iterator<Item = f32> {
        self.group.iter().map(|w| w * self.factor)
    }
}

/// The multiples of a scale that codes stand for.
#[derive(Clone, Copy)]
pub(super) struct Levels {
    /// The zero code, and so the largest multiple on the short side.
    zero: f32,
    /// The largest multiple on the long side.
    half: f32,
}

impl Levels {
    pub(super) fn of(grid: &Grid) -> Self {
        let zero = grid.layout.zero_code() as f32;
        Self { zero, half: zero + 1.0 }
    }

    #[inline(always)]
    pub(super) fn multiple(self, x: f32) -> f32 {
        let x = if x > -self.zero { x } else { -self.zero };
        nearest(if x < self.half { x } else { self.half })
    }

    /// The code of a multiple.
    #[inline(always)]
    pub(super) fn code(self, multiple: f32) -> u8 {
        nearest_code(multiple + self.zero)
    }

    /// A scale as it is stored, held where all its multiples are finite values of the dtype.
    #[inline(always)]
    fn stored_scale(self, dtype: Dtype, scale: f32) -> f32 {
        let largest = match dtype.stored() {
            Dtype::Float16 => half::f16::MAX.to_f32(),
            _ => half::bf16::MAX.to_f32(),
        };
        // `half` is a power of two: the limit is a value of the dtype.
        let limit = largest / self.half;
        stored_scale(dtype, scale.clamp(-limit, limit))
    }

    /// How many scales the largest value may lie from zero; 0 fills up.
    fn steps(self) -> [Lanes; 2] {
        let whole = std::array::from_fn(|lane| (self.half - lane as f32).max(0.0));
        [whole, BEYOND.map(|steps| self.half + steps)]
    }

    /// The best scale found, as it is before rounding.
    #[inline(always)]
    fn refit(self, values: Values<'_>, largest: f32) -> f32 {
        let (mut best, mut gain) = (0.0, 0.0);
        for steps in self.steps() {
            let (a, b) = self.sums(values, &steps.map(|steps| steps / largest));
            for (a, b) in a.into_iter().zip(b) {
                // Nothing but zeros where there are no steps.
                if b > 0.0 && a * a / b > gain {
                    (best, gain) = (a / b, a * a / b);
                }
            }
        }
        best
    }

    /// `sum(w q)` and `sum(q q)` for the codes of several inverse scales.
    #[inline(always)]
    fn sums(self, values: Values<'_>, inverse: &Lanes) -> (Lanes, Lanes) {
        let (mut a, mut b) = ([0.0; LANES], [0.0; LANES]);
        for w in values.iter() {
            // One loop for each result: vectors of their own, not one that both are shuffled into.
            let q = inverse.map(|inverse| self.multiple(w * inverse));
            a.iter_mut().zip(q).for_each(|(a, q)| *a += w * q);
            b.iter_mut().zip(q).for_each(|(b, q)| *b += q * q);
        }
        (a, b)
    }

    #[inline(always)]
    fn squared_error(self, values: Values<'_>, scale: f32) -> f32 {
        let inverse = scale.recip();
        let square = |w: f32| {
            let w = w * values.factor;
            let error = w - self.multiple(w * inverse) * scale;
            error * error
        };
        let (chunks, rest) = values.group.as_chunks::<LANES>();
        let mut sums = [0.0; LANES];
        for chunk in chunks {
            sums.iter_mut().zip(chunk).for_each(|(sum, &w)| *sum += square(w));
        }
        sums.into_iter().chain(rest.iter().map(|&w| square(w))).sum()
    }

    #[inline(always)]
    fn write(self, values: Values<'_>, scale: f32, codes: &mut [u8]) {
        let inverse = scale.recip();
        for (code, w) in codes.iter_mut().zip(values.iter()) {
            *code = self.code(self.multiple(w * inverse));
        }
    }
}
