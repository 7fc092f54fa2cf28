//! MLC-LLM's rule, bit for bit (mlc_llm/quantization/group_quantization.py, utils.py).

use super::{Grid, Rounding};
use crate::dtype::Dtype;
use crate::quant::float::{nearest_code, round_f16, round_to, round_to_11_bits};
use crate::quant::group::Rule;

/// Scale = absmax / M, code = round(w / scale + M), every operation in the dtype.
///
/// M is the zero code, so codes run over 0..=2M and the highest code of the layout is never used.
pub(in crate::quant) struct Mlc;

impl Rule for Mlc {
    #[inline(always)]
    fn choose(grid: &Grid, group: &[f32], codes: &mut [u8]) -> f32 {
        let zero = grid.layout.zero_code() as f32;
        let (absmax, has_nan) = absmax(grid, group);
        let scale = round_to(grid.dtype, absmax / zero);
        match grid.dtype {
            Dtype::Float16 if has_nan => {
                round(grid, group, codes, |w| round_f16(round_f16(w / scale) + zero));
            }
            // Quotients below f16's normal range are absorbed by the addition, and those above it by the clamp that follows.
            Dtype::Float16 => {
                round(grid, group, codes, |w| round_to_11_bits(round_to_11_bits(w / scale) + zero));
            }
            // TVM computes bfloat16 in f32 and rounds only what it stores.
            _ => round(grid, group, codes, |w| w / scale + zero),
        }
        scale
    }
}

#[inline(always)]
fn round(grid: &Grid, group: &[f32], codes: &mut [u8], position: impl Fn(f32) -> f32) {
    let highest = 2.0 * grid.layout.zero_code() as f32;
    // A NaN (0 / 0 in a group of zeros) fails the first comparison and becomes code 0.
    let clamped = |w| {
        let t = position(w);
        let t = if t > 0.0 { t } else { 0.0 };
        if t < highest { t } else { highest }
    };
    let codes = codes.iter_mut().zip(group);
    match grid.rounding {
        Rounding::Even => codes.for_each(|(code, &w)| *code = nearest_code(clamped(w))),
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0..=2M")]
        Rounding::Away => codes.for_each(|(code, &w)| *code = (clamped(w) + 0.5) as u8),
    }
}

/// The largest magnitude, and whether a NaN was met.
#[inline(always)]
fn absmax(grid: &Grid, group: &[f32]) -> (f32, bool) {
    // The order of magnitudes is that of their bits, and a maximum of integers needs no order of evaluation.
    let bits = group.iter().fold(0, |max, w| w.abs().to_bits().max(max));
    let max = f32::from_bits(bits);
    if max.is_nan() { (scan(grid, group), true) } else { (max, false) }
}

/// The scan that MLC compiles: a NaN replaces what came before it and is replaced by what follows.
#[cold]
fn scan(grid: &Grid, group: &[f32]) -> f32 {
    let lowest = match grid.dtype {
        Dtype::Float16 => half::f16::MIN.to_f32(),
        Dtype::Bfloat16 => half::bf16::MIN.to_f32(),
        _ => f32::MIN,
    };
    let padding = std::iter::repeat_n(lowest, grid.layout.group as usize - group.len());
    let magnitudes = group.iter().map(|w| w.abs()).chain(padding);
    magnitudes.fold(lowest, |max, v| if max > v { max } else { v })
}

#[cfg(test)]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::float_cmp,
    reason = "numbers are small, and equality to the bit is the point"
)]
mod tests {
    use super::*;
    use crate::dtype::Dtype::Float16;
    use crate::quant::float::stored_bits;
    use crate::quant::{Codes, Grouped};

    /// The vectors of MLC's own output: 32 bf16 values as hex, then the scale's f16 bits and the words for q4f16_1.
    const VECTORS: &[(&str, u16, [u32; 4])] = &[
        (
            "3b25bb2d3c523b09bc303bed3cd63c9bbc67bccfbc4c3a59bd3ebb8fbcccbc70bc32bbcf3c073cabbb283ce0bc5a3be63c943af6bc74bc97bc163b90bca5bb89",
            0x1ec9,
            [0xab85_7977, 0x5360_7535, 0x85b7_a865, 0x6486_457a],
        ),
        (
            "c060c050c040c030c020c010c000bfe0bfc0bfa0bf80bf40bf00be8000003e803f003f403f803fa03fc03fe04000401040204030404040504060c060c050c040",
            0x3800,
            [0x4322_2100, 0x8766_6544, 0xcbaa_a988, 0x100e_edcc],
        ),
        (
            "3f800000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000",
            0x3092,
            [0x7777_777e, 0x7777_7777, 0x7777_7777, 0x7777_7777],
        ),
        (
            "33d7b30133d733d733d733d733d733d733d733d733d733d733d733d733d733d733d733d733d733d733d733d733d733d733d733d733d733d733d733d733d733d7",
            0x0000,
            [0xeeee_ee0e, 0xeeee_eeee, 0xeeee_eeee, 0xeeee_eeee],
        ),
        (
            "00000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000",
            0x0000,
            [0, 0, 0, 0],
        ),
    ];

    const Q4: Grouped = Grouped::mlc(4, 32);
    const Q3: Grouped = Grouped::mlc(3, 40);

    /// Scale and words of one row, of one group.
    fn encode(layout: Grouped, dtype: Dtype, rounding: Rounding, row: &[f32]) -> (f32, Vec<u32>) {
        let row: Vec<f32> = row.iter().map(|&w| round_to(dtype, w)).collect();
        let mut words = vec![0; layout.words_per_row(row.len() as u64) as usize];
        let mut scales = [0.0];
        let mlc = Codes::find("mlc").expect("a chooser");
        Grid { layout, dtype, rounding }.encode_rows(&row, row.len(), mlc, &mut words, &mut scales);
        (scales[0], words)
    }

    fn values(hex: &str) -> Vec<f32> {
        (0..hex.len() / 4)
            .map(|i| u32::from_str_radix(&hex[4 * i..4 * i + 4], 16).expect("hex"))
            .map(|bits| f32::from_bits(bits << 16))
            .collect()
    }

    #[test]
    fn vectors_in_float16() {
        for (hex, scale, expected) in VECTORS {
            let (found, words) = encode(Q4, Float16, Rounding::Even, &values(hex));
            assert_eq!(stored_bits(Float16, found), *scale, "scale of {hex}");
            assert_eq!(words, *expected, "codes of {hex}");
        }
    }

    #[test]
    fn vectors_in_float32_and_bfloat16() {
        // The tiny group does not underflow here; everything else has the codes of float16.
        let tiny = [0xeeee_ee5e, 0xeeee_eeee, 0xeeee_eeee, 0xeeee_eeee];
        for (i, scale) in [(0, 0x3bd9), (1, 0x3f00), (2, 0x3e12), (3, 0x3276), (4, 0)] {
            let (hex, _, words) = VECTORS[i];
            let expected = if i == 3 { tiny } else { words };
            for dtype in [Dtype::Float32, Dtype::Bfloat16] {
                let (found, words) = encode(Q4, dtype, Rounding::Even, &values(hex));
                assert_eq!(stored_bits(dtype, found), scale, "{dtype} scale of {hex}");
                assert_eq!(words, expected, "{dtype} codes of {hex}");
            }
        }
    }

    #[test]
    fn bfloat16_divides_by_the_rounded_scale() {
        // 1 / 7 is 0.142857 in f32 and 0.142578 in bfloat16, which moves 0.5 past a tie: 3.5 and 3.5068 above zero.
        let row = [vec![1.0, 0.5], vec![0.0; 30]].concat();
        let codes = |dtype| encode(Q4, dtype, Rounding::Even, &row).1[0] & 0xFF;
        assert_eq!((codes(Dtype::Float32), codes(Dtype::Bfloat16)), (0xae, 0xbe));
    }

    #[test]
    fn ties_go_to_the_even_or_to_the_higher_code() {
        let (hex, scale, _) = VECTORS[1];
        let (found, words) = encode(Q4, Float16, Rounding::Away, &values(hex));
        assert_eq!(stored_bits(Float16, found), scale);
        assert_eq!(words, [0x4332_2110, 0x8776_6554, 0xcbba_a998, 0x110e_eddc]);
    }

    #[test]
    fn three_bits_leave_the_top_of_a_word_empty() {
        // Thirteen positions from -3 to 3, in steps of a half scale; the scale is 1.
        let row: Vec<f32> = (0..40).map(|i| (i % 13) as f32 / 2.0 - 3.0).collect();
        let (scale, words) = encode(Q3, Float16, Rounding::Even, &row);
        assert_eq!(scale, 1.0);
        let code = |i: usize| (words[i / 10] >> (3 * (i % 10))) & 7;
        for (i, w) in row.iter().enumerate() {
            assert_eq!(code(i), (w + 3.0).round_ties_even() as u32, "code {i}");
        }
        assert!(words.iter().all(|word| word >> 30 == 0));
    }

    #[test]
    fn infinity_and_nan_as_tvm_compiles_them() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        // An infinite scale: inf / inf is NaN and becomes 0, everything finite becomes the zero code.
        let (scale, words) = encode(Q4, Float16, Rounding::Even, &[1.0, inf, -inf, 0.0]);
        assert_eq!((scale, words), (inf, vec![0x7007, 0, 0, 0]));
        // A NaN wipes out the largest magnitude before it, and is wiped out by what follows.
        let (scale, words) =
            encode(Q4, Float16, Rounding::Even, &[vec![14.0, nan], vec![7.0; 30]].concat());
        assert_eq!((scale, words[0]), (1.0, 0xeeee_ee0e));
        // NaN as the last value of a row is wiped out by the padding, the lowest f16.
        let (scale, words) = encode(Q4, Float16, Rounding::Even, &[1.0, nan]);
        assert_eq!((scale, words[0]), (-9360.0, 0x07));
        // As the last of a whole group it stays.
        let (scale, words) =
            encode(Q4, Float16, Rounding::Even, &[vec![1.0; 31], vec![nan]].concat());
        assert!(scale.is_nan());
        assert_eq!(words, [0, 0, 0, 0]);
    }

    #[test]
    fn a_short_group_is_padded_with_code_zero() {
        let (scale, words) = encode(Q4, Float16, Rounding::Even, &[7.0, -7.0, 1.0]);
        assert_eq!((scale, words), (1.0, vec![0x80e, 0, 0, 0]));
    }
}
