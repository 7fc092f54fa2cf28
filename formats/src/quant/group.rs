//! Group quantisation: runs of `group` values along a row share a scale; codes are packed into 32-bit words.
//!
//! A code `c` stands for `(c - max_code/2) * scale`. Element `i` of a word sits in bits `i * bits`, the first in the
//! lowest. Rows are padded to whole groups with code 0. (mlc_llm/quantization/group_quantization.py, utils.py)

use super::codes::{Codes, Grid};

/// The layout of a grouped scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grouped {
    /// Bits of a code.
    pub bits: u32,
    /// Values that share a scale.
    pub group: u32,
}

impl Grouped {
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
        (1 << (self.bits - 1)) - 1
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
    pub(super) fn pack(self, codes: &[u8], words: &mut [u32]) {
        let codes = codes.chunks(self.codes_per_word() as usize);
        for (word, codes) in words.iter_mut().zip(codes) {
            *word = codes.iter().rev().fold(0, |word, &code| (word << self.bits) | u32::from(code));
        }
    }

    /// Restores one row: `out[k] = (code - zero_code) * scale` in f32.
    pub fn decode_row(self, words: &[u32], scales: &[f32], out: &mut [f32]) {
        let mask = (1u32 << self.bits) - 1;
        let groups = out.chunks_mut(self.group as usize);
        for ((group, words), &scale) in
            groups.zip(words.chunks(self.words_per_group() as usize)).zip(scales)
        {
            for (values, &word) in group.chunks_mut(self.codes_per_word() as usize).zip(words) {
                for (i, value) in (0..).zip(values) {
                    let code = (word >> (i * self.bits)) & mask;
                    *value = (code as f32 - self.zero_code() as f32) * scale;
                }
            }
        }
    }
}

impl Grid {
    /// Quantises one row whose values are already rounded to the dtype.
    ///
    /// `words` has `words_per_row` entries and `scales` has `groups_per_row`; the scales are values of the dtype.
    pub fn encode_row(&self, row: &[f32], chooser: &Codes, words: &mut [u32], scales: &mut [f32]) {
        let group = self.layout.group;
        let mut codes = vec![0u8; group as usize];
        let groups = row.chunks(group as usize);
        let words = words.chunks_mut(self.layout.words_per_group() as usize);
        for ((group, words), scale) in groups.zip(words).zip(scales) {
            let (used, padding) = codes.split_at_mut(group.len());
            padding.fill(0);
            *scale = (chooser.choose)(self, group, used);
            self.layout.pack(&codes, words);
        }
    }
}
