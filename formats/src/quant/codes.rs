//! Code choosers: given the values of one group, which scale and which codes.

use super::float::{round_f16, round_to};
use super::group::Grouped;
use crate::dtype::Dtype;

/// Chooses a scale (a value of the scheme's dtype) and writes one code per value of the group.
///
/// The values are at most `group` many (fewer at the end of a row) and rounded to the dtype.
pub type Choose = fn(Grouped, Dtype, &[f32], &mut [u8]) -> f32;

/// One row of the table of choosers.
#[derive(Debug)]
pub struct Codes {
    /// As in `--codes NAME`.
    pub name: &'static str,
    /// The rule.
    pub choose: Choose,
}

/// Every chooser, by name.
pub const CODES: &[Codes] = &[Codes { name: "mlc", choose: mlc }];

impl Codes {
    /// The row of that name.
    pub fn find(name: &str) -> Option<&'static Self> {
        CODES.iter().find(|codes| codes.name == name)
    }
}

/// MLC-LLM's rule, bit for bit: scale = absmax / M, code = round(w / scale + M), every operation in the dtype.
///
/// M is the zero code, so codes run over 0..=2M and the highest code of the layout is never used. Rounding is ties to
/// even, as in TVM since 0.24. (mlc_llm/quantization/utils.py, group_quantization.py)
fn mlc(layout: Grouped, dtype: Dtype, group: &[f32], codes: &mut [u8]) -> f32 {
    let zero = layout.zero_code() as f32;
    let scale = round_to(dtype, absmax(layout, dtype, group) / zero);
    match dtype {
        // |w / scale| is below 2^-14 or well inside f16's range, and what underflows is absorbed by the addition.
        Dtype::Float16 => codes_of(group, codes, zero, |w| round_f16(round_f16(w / scale) + zero)),
        // TVM computes bfloat16 in f32 and rounds only what it stores.
        _ => codes_of(group, codes, zero, |w| w / scale + zero),
    }
    scale
}

#[inline]
fn codes_of(group: &[f32], codes: &mut [u8], zero: f32, position: impl Fn(f32) -> f32) {
    for (code, &w) in codes.iter_mut().zip(group) {
        let rounded = position(w).round_ties_even();
        // `max` and `min` drop a NaN (0 / 0 in a group of zeros), which must give code 0.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped to 0..=2M"
        )]
        let clamped = rounded.max(0.0).min(2.0 * zero) as u8;
        *code = clamped;
    }
}

/// The largest magnitude, by the scan that MLC compiles: a NaN replaces what came before it and is replaced by what follows.
fn absmax(layout: Grouped, dtype: Dtype, group: &[f32]) -> f32 {
    let lowest = match dtype {
        Dtype::Float16 => half::f16::MIN.to_f32(),
        Dtype::Bfloat16 => half::bf16::MIN.to_f32(),
        _ => f32::MIN,
    };
    let padding = std::iter::repeat_n(lowest, layout.group as usize - group.len());
    let magnitudes = group.iter().map(|w| w.abs()).chain(padding);
    magnitudes.fold(lowest, |max, v| if max > v { max } else { v })
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn mlc_vectors() {
        let layout = Grouped { bits: 4, group: 32 };
        for (hex, scale_bits, expected) in VECTORS {
            let row: Vec<f32> = (0..32)
                .map(|i| u32::from_str_radix(&hex[4 * i..4 * i + 4], 16).expect("hex"))
                .map(|bits| round_f16(f32::from_bits(bits << 16)))
                .collect();
            let (mut words, mut scales) = ([0; 4], [0.0]);
            layout.encode_row(&row, Dtype::Float16, &CODES[0], &mut words, &mut scales);
            assert_eq!(half::f16::from_f32(scales[0]).to_bits(), *scale_bits, "scale of {hex}");
            assert_eq!(words, *expected, "codes of {hex}");
        }
    }
}
