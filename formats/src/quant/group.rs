//! Group quantisation: runs of `group` values along a row share a scale; codes are packed into 32-bit words.
//!
//! A code `c` stands for `(c - zero_code) * scale`. Element `i` of a word sits in bits `i * bits`, the first in the
//! lowest, unless its [`Coding`] says otherwise. Rows are padded to whole groups with code 0.
//! (mlc_llm/quantization/group_quantization.py, utils.py)

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
    pub(super) fn pack(self, codes: &[u8], words: &mut [u32]) {
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

#[cfg(test)]
mod tests {
    use super::*;

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
