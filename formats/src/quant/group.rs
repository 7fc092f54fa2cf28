//! Group quantisation: runs of `group` values along a row share a scale; codes are packed into 32-bit words.
//!
//! A code `c` stands for `(c - zero_code) * scale`. Element `i` of a word sits in bits `i * bits`, the first in the
//! lowest, unless its [`Coding`] says otherwise. Rows are padded to whole groups with code 0.
//! (mlc_llm/quantization/group_quantization.py, utils.py)

use std::marker::PhantomData;

use super::codes::{Codes, Grid};

/// The layout of a grouped scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grouped {
    /// Bits of a code.
    pub bits: u32,
    /// Values that share a scale.
    pub group: u32,
    /// What the codes stand for, and where they are.
    pub coding: Coding,
}

/// Whose codes they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// MLC's: as many codes below zero as above, the highest code unused.
    Mlc,
    /// ExecuTorch's 4-bit group-symmetric layout (`q4gsw`): -8..7, stored with 8 added. It is decoded only.
    Q4gsw {
        /// Whether the first of two codes is in the upper half of their byte, as in embeddings; in linear layers it is
        /// in the lower.
        high_first: bool,
    },
}

impl Grouped {
    /// A layout of MLC's schemes.
    pub const fn mlc(bits: u32, group: u32) -> Self {
        Self { bits, group, coding: Coding::Mlc }
    }

    /// ExecuTorch's `q4gsw`, whose groups have 32, 64 or 128 values; see [`Coding::Q4gsw`].
    pub const fn q4gsw(group: u32, high_first: bool) -> Self {
        Self { bits: 4, group, coding: Coding::Q4gsw { high_first } }
    }

    /// Codes in a word; bits left over at its top are zero.
    pub const fn codes_per_word(self) -> u32 {
        32 / self.bits
    }

    /// Words of a group.
    pub const fn words_per_group(self) -> u32 {
        self.group.div_ceil(self.codes_per_word())
    }

    /// The code that stands for zero.
    pub const fn zero_code(self) -> u32 {
        match self.coding {
            Coding::Mlc => (1 << (self.bits - 1)) - 1,
            Coding::Q4gsw { .. } => 1 << (self.bits - 1),
        }
    }

    /// Whether the first of two codes is in the upper half of their byte.
    pub const fn high_first(self) -> bool {
        matches!(self.coding, Coding::Q4gsw { high_first: true })
    }

    /// Groups, and so scales, of a row of `columns` values.
    pub const fn groups_per_row(self, columns: u64) -> u64 {
        columns.div_ceil(self.group as u64)
    }

    /// Words of a row of `columns` values.
    pub const fn words_per_row(self, columns: u64) -> u64 {
        self.groups_per_row(columns) * self.words_per_group() as u64
    }

    /// Packs the codes of a whole group.
    #[inline(always)]
    pub(super) fn pack(self, codes: &[u8], words: &mut [u32]) {
        if let (4, (codes, [])) = (self.bits, codes.as_chunks()) {
            words.iter_mut().zip(codes).for_each(|(word, &codes)| *word = pack_nibbles(codes));
            return;
        }
        let codes = codes.chunks(self.codes_per_word() as usize);
        for (word, codes) in words.iter_mut().zip(codes) {
            *word = codes.iter().rev().fold(0, |word, &code| (word << self.bits) | u32::from(code));
        }
    }

    /// Restores one row: `out[k] = (code - zero_code) * scale` in f32.
    pub fn decode_row(self, words: &[u32], scales: &[f32], out: &mut [f32]) {
        let mask = (1u32 << self.bits) - 1;
        let swap = u32::from(self.high_first());
        let groups = out.chunks_mut(self.group as usize);
        for ((group, words), &scale) in
            groups.zip(words.chunks(self.words_per_group() as usize)).zip(scales)
        {
            for (values, &word) in group.chunks_mut(self.codes_per_word() as usize).zip(words) {
                for (i, value) in (0..).zip(values) {
                    let code = (word >> ((i ^ swap) * self.bits)) & mask;
                    *value = (code as f32 - self.zero_code() as f32) * scale;
                }
            }
        }
    }
}

/// The word of eight codes below 16: neighbours are joined to bytes, those to halves, those to the word.
#[inline(always)]
fn pack_nibbles(codes: [u8; 8]) -> u32 {
    let x = u64::from_le_bytes(codes);
    let x = (x | (x >> 4)) & 0x00FF_00FF_00FF_00FF;
    let x = (x | (x >> 8)) & 0x0000_FFFF_0000_FFFF;
    #[expect(clippy::cast_possible_truncation, reason = "all codes are in the lower half")]
    let word = (x | (x >> 16)) as u32;
    word
}

impl Grid {
    /// Quantises rows of `columns` values, which are already rounded to the dtype.
    ///
    /// `words` has `words_per_row` entries a row and `scales` has `groups_per_row`; the scales are values of the dtype.
    pub fn encode_rows(
        &self,
        rows: &[f32],
        columns: usize,
        chooser: &Codes,
        words: &mut [u32],
        scales: &mut [f32],
    ) {
        (chooser.encode)(self, rows, columns, words, scales);
    }

    /// The same under a rule.
    pub(super) fn encode_groups<R: Rule>(
        &self,
        rows: &[f32],
        columns: usize,
        words: &mut [u32],
        scales: &mut [f32],
    ) {
        let rule = PhantomData::<R>;
        pulp::Arch::new().dispatch(EncodeGroups { grid: self, rows, columns, words, scales, rule });
    }
}

/// How a scale and codes are found.
pub(super) trait Rule {
    /// Chooses the scale of a group, which is a value of the dtype, and writes one code per value. A group at the end
    /// of a row may be short.
    fn choose(grid: &Grid, group: &[f32], codes: &mut [u8]) -> f32;
}

/// [`Grid::encode_groups`], to be compiled for each set of vector instructions that a machine may have. Only what is
/// inlined gains by that, hence `inline(always)` all the way down.
///
/// The bytes are the same everywhere: the compiler may neither reorder nor contract floating-point operations, and
/// nothing is summed across lanes.
struct EncodeGroups<'a, R> {
    grid: &'a Grid,
    rows: &'a [f32],
    columns: usize,
    words: &'a mut [u32],
    scales: &'a mut [f32],
    rule: PhantomData<R>,
}

impl<R: Rule> pulp::NullaryFnOnce for EncodeGroups<'_, R> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { grid, rows, columns, words, scales, .. } = self;
        let group = grid.layout.group as usize;
        let mut codes = vec![0u8; group];
        let mut outputs =
            words.chunks_mut(grid.layout.words_per_group() as usize).zip(scales.iter_mut());
        for row in rows.chunks(columns) {
            for (group, (words, scale)) in row.chunks(group).zip(&mut outputs) {
                let (used, padding) = codes.split_at_mut(group.len());
                padding.fill(0);
                *scale = R::choose(grid, group, used);
                grid.layout.pack(&codes, words);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pulp::NullaryFnOnce as _;

    use super::*;
    use crate::dtype::Dtype;
    use crate::quant::codes::best::Best;
    use crate::quant::codes::mlc::Mlc;
    use crate::quant::{Rounding, float};

    /// What the machine's vectors make of some rows, and what plain instructions do.
    fn both<R: Rule>(grid: &Grid, rows: &[f32], columns: usize) -> [(Vec<u32>, Vec<u32>); 2] {
        let size = |n: u64| usize::try_from(n).unwrap() * (rows.len() / columns);
        [true, false].map(|vectors| {
            let mut words = vec![0; size(grid.layout.words_per_row(columns as u64))];
            let mut scales = vec![0.0; size(grid.layout.groups_per_row(columns as u64))];
            if vectors {
                grid.encode_groups::<R>(rows, columns, &mut words, &mut scales);
            } else {
                let (words, scales) = (&mut words, &mut scales);
                EncodeGroups { grid, rows, columns, words, scales, rule: PhantomData::<R> }.call();
            }
            (words, scales.into_iter().map(f32::to_bits).collect())
        })
    }

    #[test]
    fn vector_instructions_do_not_show() {
        let value = |i: u32| {
            let hash = i.wrapping_mul(0x9E37_79B9).rotate_left(i % 31).wrapping_mul(0x85EB_CA6B);
            f32::from_bits(hash & 0x83FF_FFFF | 0x3800_0000) * (i % 7) as f32
        };
        let columns = 97;
        for (bits, group) in [(4, 32), (3, 40), (8, 32), (4, 48)] {
            for dtype in [Dtype::Float16, Dtype::Bfloat16, Dtype::Float32] {
                for rounding in [Rounding::Even, Rounding::Away] {
                    let grid = Grid { layout: Grouped::mlc(bits, group), dtype, rounding };
                    let rows: Vec<f32> =
                        (0..8 * 97).map(|i| float::round_to(dtype, value(i))).collect();
                    let [found, expected] = both::<Best>(&grid, &rows, columns);
                    assert_eq!(found, expected, "best, {grid:?}");
                    let [found, expected] = both::<Mlc>(&grid, &rows, columns);
                    assert_eq!(found, expected, "mlc, {grid:?}");
                }
            }
        }
    }

    #[test]
    fn nibbles_are_packed_as_any_codes_are() {
        let layout = Grouped::mlc(4, 32);
        let codes: Vec<u8> = (0..32).map(|i| i * 7 % 16).collect();
        let mut words = [0; 4];
        layout.pack(&codes, &mut words);
        for (i, code) in codes.iter().enumerate() {
            assert_eq!((words[i / 8] >> (4 * (i % 8))) & 15, u32::from(*code), "code {i}");
        }
    }

    /// Row 27 of the behaviours taken over from other runtimes: both nibble orders of `q4gsw` decode.
    #[test]
    fn q4gsw_decodes_in_both_nibble_orders() {
        // Codes -8, -7, .. 7, twice, as ExecuTorch stores them: a byte for two.
        let codes: Vec<i8> = (-8..8).chain(-8..8).collect();
        let stored = |code: i8| u32::try_from(code + 8).expect("a nibble");
        let scales = [0.5, -0.25];
        for high_first in [false, true] {
            let bytes = codes.chunks(2).map(|pair| {
                let [high, low] = if high_first { [0, 1] } else { [1, 0] };
                stored(pair[high]) << 4 | stored(pair[low])
            });
            let bytes: Vec<u32> = bytes.collect();
            let words = bytes.chunks(4).map(|b| b[0] | b[1] << 8 | b[2] << 16 | b[3] << 24);
            let words: Vec<u32> = words.collect();
            for group in [32, 64, 128] {
                let layout = Grouped::q4gsw(group, high_first);
                let words = words.repeat(group as usize / 32 * 2);
                let mut row = vec![0.0; 2 * group as usize];
                layout.decode_row(&words, &scales, &mut row);
                for (i, value) in row.iter().enumerate() {
                    let expected = f32::from(codes[i % 32]) * scales[i / group as usize];
                    assert!((value - expected).abs() < f32::EPSILON, "{high_first} {group} {i}");
                }
            }
        }
    }
}
