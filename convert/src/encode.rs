//! One band from values to the bytes of its records.

use packlight_formats::dtype::Dtype;
use packlight_formats::quant::float::stored_bits;
use packlight_formats::quant::{Grid, Order, Storage};

use crate::band::{Block, evaluate};
use crate::check::{Conversion, PlannedWeight};
use crate::compensate::{Chosen, Compensated};
use crate::error::ConvertError;
use crate::stream::StreamOptions;

/// An encoded band; a weight that is not quantised has no scales.
pub(crate) struct Encoded {
    pub(crate) values: Lines,
    pub(crate) scales: Lines,
}

/// Bytes in lines of equal length: runs that stay together in the record.
#[derive(Default)]
pub(crate) struct Lines {
    pub(crate) bytes: Vec<u8>,
    pub(crate) count: usize,
}

impl Lines {
    pub(crate) fn line(&self, i: usize) -> &[u8] {
        let length = self.bytes.len() / self.count.max(1);
        &self.bytes[i * length..][..length]
    }
}

impl Conversion<'_> {
    pub(crate) fn encode(
        &self,
        planned: &PlannedWeight,
        block: &Block,
        options: StreamOptions,
        compensated: Option<&Compensated>,
    ) -> Result<Encoded, ConvertError> {
        let PlannedWeight { weight, scheme, storage } = planned;
        let dtype = scheme.dtype;
        let allow_non_finite = options.allow_non_finite;
        let values = || evaluate(self.checkpoint, weight, block, dtype, allow_non_finite);
        let Storage::Grouped { layout, order, .. } = storage else {
            let values = values()?;
            let values = Lines { bytes: stored_bytes(&values, dtype), count: 1 };
            return Ok(Encoded { values, scales: Lines::default() });
        };
        let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let words_per_row = size(layout.words_per_row(block.width()));
        let groups_per_row = size(layout.groups_per_row(block.width()));
        let chosen =
            compensated.map(|compensated| compensated.block(planned, block)).transpose()?;
        let Chosen { mut words, mut scales } = if let Some(chosen) = chosen.flatten() {
            chosen
        } else {
            let (rows, columns) = (size(block.height()), size(block.width()));
            let (mut words, mut scales) =
                (vec![0u32; rows * words_per_row], vec![0f32; rows * groups_per_row]);
            let grid = Grid { layout: *layout, dtype, rounding: options.rounding };
            grid.encode_rows(&values()?, columns, self.codes, &mut words, &mut scales);
            Chosen { words, scales }
        };
        let (word_lines, scale_lines) = match order {
            Order::Nk => (1, 1),
            Order::Kn => {
                words = transpose(&words, words_per_row);
                scales = transpose(&scales, groups_per_row);
                (words_per_row, groups_per_row)
            }
        };
        for word in &mut words {
            *word = word.to_le();
        }
        let bytes = bytemuck::cast_slice(&words).to_vec();
        Ok(Encoded {
            values: Lines { bytes, count: word_lines },
            scales: Lines { bytes: stored_bytes(&scales, dtype), count: scale_lines },
        })
    }
}

/// Values of `dtype`, held in f32, as they are stored.
fn stored_bytes(values: &[f32], dtype: Dtype) -> Vec<u8> {
    let bits: Vec<u16> = values.iter().map(|&x| stored_bits(dtype, x).to_le()).collect();
    bytemuck::cast_slice(&bits).to_vec()
}

/// The columns of a row-major matrix, one after the other.
fn transpose<T: Copy>(matrix: &[T], width: usize) -> Vec<T> {
    (0..width).flat_map(|column| matrix.iter().skip(column).step_by(width).copied()).collect()
}
