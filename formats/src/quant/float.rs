//! Rounding of f32 values to narrower types, written so that loops over it vectorise.
//!
//! An f32 operation on f16 (or bf16) operands followed by one of these roundings equals the operation carried out in
//! that type: the 24 bits of f32 exceed twice the 11 of f16 by two, so rounding twice is harmless (Figueroa 1995).

use crate::dtype::Dtype;

/// The nearest f16, ties to even; beyond 65504 (after rounding) infinite. Subnormals are kept, NaN stays NaN.
#[inline(always)]
pub fn round_f16(x: f32) -> f32 {
    let magnitude = x.abs();
    // At exponent -1 an f32 ulp is 2^-24, the step of f16's subnormals: the addition rounds to it.
    let subnormal = (magnitude + 0.5) - 0.5;
    let bits = magnitude.to_bits();
    // Adding just under half of the dropped 13 bits, plus the kept lowest bit, rounds ties to even.
    let rounded = bits.wrapping_add(0xFFF + ((bits >> 13) & 1)) & !0x1FFF;
    let normal = if rounded > 65504f32.to_bits() { f32::INFINITY } else { f32::from_bits(rounded) };
    let finite = if magnitude < 6.103_515_6e-5 { subnormal } else { normal };
    (if magnitude.is_nan() { magnitude } else { finite }).copysign(x)
}

/// The nearest bf16, ties to even; overflow becomes infinite, NaN stays NaN.
#[inline(always)]
pub fn round_bf16(x: f32) -> f32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + ((bits >> 16) & 1)) & !0xFFFF;
    if x.is_nan() { x } else { f32::from_bits(rounded) }
}

/// The nearest value of `dtype`, where it is narrower than float32.
#[inline(always)]
pub fn round_to(dtype: Dtype, x: f32) -> f32 {
    match dtype {
        Dtype::Float16 => round_f16(x),
        Dtype::Bfloat16 => round_bf16(x),
        Dtype::Float32 | Dtype::Uint32 => x,
    }
}

/// Rounds every value to `dtype` and says whether all of them are finite then.
pub fn round_all(dtype: Dtype, values: &mut [f32]) -> bool {
    /// To be compiled for each set of vector instructions.
    struct Round<'a>(Dtype, &'a mut [f32]);

    impl pulp::NullaryFnOnce for Round<'_> {
        type Output = bool;

        #[inline(always)]
        fn call(self) -> bool {
            let Self(dtype, values) = self;
            match dtype {
                Dtype::Float16 => values.iter_mut().for_each(|x| *x = round_f16(*x)),
                Dtype::Bfloat16 => values.iter_mut().for_each(|x| *x = round_bf16(*x)),
                Dtype::Float32 | Dtype::Uint32 => {}
            }
            // Infinities and NaN have the largest exponent, and a maximum of integers vectorises.
            let largest = values.iter().fold(0, |max, x| x.abs().to_bits().max(max));
            f32::from_bits(largest).is_finite()
        }
    }

    pulp::Arch::new().dispatch(Round(dtype, values))
}

/// The nearest value with the 11 significant bits of f16, ties to even: [`round_f16`] short of its limits.
///
/// Neither overflow nor subnormals nor the payload of a NaN are looked after.
#[inline(always)]
pub(super) fn round_to_11_bits(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits(bits.wrapping_add(0xFFF + ((bits >> 13) & 1)) & !0x1FFF)
}

/// At this size an f32 ulp is 1: adding it leaves the nearest integer, ties to even, in the lowest bits.
///
/// `f32::round_ties_even` is a call into libm where SSE4.1 cannot be counted on.
const ULP_IS_ONE: f32 = 12_582_912.0;

/// The nearest integer, ties to even, of a number below 2^22.
#[inline(always)]
pub(super) fn nearest(x: f32) -> f32 {
    (x + ULP_IS_ONE) - ULP_IS_ONE
}

/// The nearest integer, ties to even, of a number in 0..=255.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the lowest bits are wanted")]
pub(super) fn nearest_code(x: f32) -> u8 {
    (x + ULP_IS_ONE).to_bits() as u8
}

/// The 16 bits in which a value of `dtype`, held in f32, is stored.
///
/// A float32 record travels as bfloat16 by MLC's own rule (tvm/contrib/tvmjs.py): to nearest inside bf16's range, but
/// beyond it, and for infinities and NaN, the lower half is cut off.
#[inline(always)]
pub fn stored_bits(dtype: Dtype, x: f32) -> u16 {
    let upper = |x: f32| {
        let [.., a, b] = x.to_bits().to_le_bytes();
        u16::from_le_bytes([a, b])
    };
    match dtype {
        Dtype::Float16 => half::f16::from_f32(x).to_bits(),
        Dtype::Bfloat16 => upper(round_bf16(x)),
        Dtype::Float32 if x.abs() < half::bf16::MAX.to_f32() => upper(round_bf16(x)),
        Dtype::Float32 | Dtype::Uint32 => upper(x),
    }
}

/// The value of a record's element whose stored bits are given; float32 records are stored as bfloat16.
#[inline(always)]
pub fn from_stored_bits(dtype: Dtype, bits: u16) -> f32 {
    match dtype {
        Dtype::Float16 => half::f16::from_bits(bits).to_f32(),
        _ => half::bf16::from_bits(bits).to_f32(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_interesting_f32_rounds_as_half_rounds_it() {
        // All 2^16 upper halves with lower halves around the rounding boundaries: exponents, ties, subnormals, NaNs.
        for upper in 0..=u16::MAX {
            for lower in [
                0, 1, 0x0FFF, 0x1000, 0x1001, 0x1FFF, 0x2000, 0x3000, 0x7FFF, 0x8000, 0x8001,
                0xFFFF,
            ] {
                let x = f32::from_bits((u32::from(upper) << 16) | lower);
                assert!(same(round_f16(x), half::f16::from_f32(x).to_f32()), "f16 of {x:e}");
                assert!(same(round_bf16(x), half::bf16::from_f32(x).to_f32()), "bf16 of {x:e}");
            }
        }
    }

    #[test]
    fn float32_is_cut_off_beyond_the_range_of_bfloat16() {
        for (x, bits) in [
            (0x3F80_8000, 0x3F80), // ties to even, twice
            (0x3F81_8000, 0x3F82),
            (0x7F7E_FFFF, 0x7F7F), // the last that is rounded
            (0x7F7F_0000, 0x7F7F),
            (0x7F7F_FFFF, 0x7F7F), // half would make it infinite
            (0xFF7F_FFFF, 0xFF7F),
            (0x7F80_0000, 0x7F80),
            (0x7FC0_0001, 0x7FC0),
            (0x7F80_0001, 0x7F80), // a NaN whose payload is lost becomes infinite, as with MLC
        ] {
            assert_eq!(stored_bits(Dtype::Float32, f32::from_bits(x)), bits, "{x:x}");
        }
    }

    fn same(a: f32, b: f32) -> bool {
        a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
    }
}
