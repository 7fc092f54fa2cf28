//! The stream of records: bands are evaluated and quantised on all threads and emitted in order.

use std::ops::Range;

use packlight_formats::dtype::Dtype;
use packlight_formats::model::Weight;
use packlight_formats::quant::Storage;
use rayon::prelude::*;

use crate::band::{evaluate, release};
use crate::check::{Conversion, PlannedWeight};
use crate::error::ConvertError;

/// Values in a band: enough work to be worth a thread's while, little enough to stay in a cache.
const BAND_VALUES: u64 = 1 << 18;
/// Bands in flight per thread. They are emitted together, so more would only take memory.
const BANDS_PER_THREAD: usize = 4;
/// The longest piece that is emitted.
const PIECE_BYTES: usize = 1 << 20;

/// Choices that do not change which records there are.
#[derive(Clone, Copy, Debug)]
pub struct StreamOptions {
    /// Convert NaN, infinities and overflows as the scheme does instead of stopping at the first.
    pub allow_non_finite: bool,
}

/// Some bytes of a record. Pieces come in the order of the records, and of the bytes in each.
#[derive(Debug)]
pub struct Piece {
    /// Index into [`Conversion::records`].
    pub record: usize,
    /// At most 1 MiB.
    pub bytes: Vec<u8>,
    /// Bytes of the checkpoint that were read for it.
    pub source_bytes: u64,
}

struct Band {
    weight: usize,
    rows: Range<u64>,
}

/// A quantised band; a weight that is not quantised has no scales.
struct Encoded {
    values: Vec<u8>,
    scales: Vec<u8>,
}

impl Conversion<'_> {
    /// Quantises everything, calling `emit` with each piece. An error of `emit` ends the stream.
    ///
    /// The pieces depend on the checkpoint and the scheme only, not on the number of threads.
    pub fn stream<E: From<ConvertError>>(
        &self,
        options: StreamOptions,
        mut emit: impl FnMut(Piece) -> Result<(), E>,
    ) -> Result<(), E> {
        let bands = self.bands();
        let mut record = 0;
        let mut scales = Vec::new();
        for bands in bands.chunks(BANDS_PER_THREAD * rayon::current_num_threads()) {
            let encoded: Vec<Result<Encoded, ConvertError>> =
                bands.par_iter().map(|band| self.encode(band, options)).collect();
            for (band, encoded) in bands.iter().zip(encoded) {
                let encoded = encoded?;
                let PlannedWeight { weight, storage } = &self.weights[band.weight];
                let source_bytes = self.band_source_bytes(weight, &band.rows);
                emit_pieces(record, encoded.values, source_bytes, &mut emit)?;
                scales.extend(encoded.scales);
                release(self.checkpoint, weight, &band.rows);
                if band.rows.end == weight.rows() {
                    if !scales.is_empty() {
                        emit_pieces(record + 1, std::mem::take(&mut scales), 0, &mut emit)?;
                    }
                    record += storage.records().count();
                }
            }
        }
        Ok(())
    }

    fn bands(&self) -> Vec<Band> {
        let of_weight = |(i, planned): (usize, &PlannedWeight)| {
            let rows = planned.weight.rows();
            let height = (BAND_VALUES / planned.weight.columns().max(1)).max(1);
            (0..rows.div_ceil(height)).map(move |band| Band {
                weight: i,
                rows: band * height..((band + 1) * height).min(rows),
            })
        };
        self.weights.iter().enumerate().flat_map(of_weight).collect()
    }

    fn encode(&self, band: &Band, options: StreamOptions) -> Result<Encoded, ConvertError> {
        let PlannedWeight { weight, storage } = &self.weights[band.weight];
        let dtype = self.scheme.dtype;
        let values =
            evaluate(self.checkpoint, weight, &band.rows, dtype, options.allow_non_finite)?;
        let Storage::Grouped { layout, .. } = storage else {
            return Ok(Encoded { values: to_bytes(&values, dtype), scales: Vec::new() });
        };
        let columns = usize::try_from(weight.columns()).unwrap_or(usize::MAX);
        let words_per_row =
            usize::try_from(layout.words_per_row(weight.columns())).unwrap_or(usize::MAX);
        let groups_per_row =
            usize::try_from(layout.groups_per_row(weight.columns())).unwrap_or(usize::MAX);
        let rows = values.len() / columns;
        let (mut words, mut scales) =
            (vec![0u32; rows * words_per_row], vec![0f32; rows * groups_per_row]);
        let outputs = words.chunks_mut(words_per_row).zip(scales.chunks_mut(groups_per_row));
        for (row, (words, scales)) in values.chunks(columns).zip(outputs) {
            layout.encode_row(row, dtype, self.codes, words, scales);
        }
        let values = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        Ok(Encoded { values, scales: to_bytes(&scales, dtype) })
    }

    fn band_source_bytes(&self, weight: &Weight, rows: &Range<u64>) -> u64 {
        let source = weight
            .recipe
            .sources()
            .first()
            .and_then(|source| self.checkpoint.tensor(&source.tensor));
        let size = source
            .and_then(|(_, tensor)| Dtype::from_safetensors(tensor.dtype))
            .map_or(0, Dtype::bytes);
        (rows.end - rows.start) * weight.columns() * size
    }
}

fn emit_pieces<E>(
    record: usize,
    bytes: Vec<u8>,
    source_bytes: u64,
    emit: &mut impl FnMut(Piece) -> Result<(), E>,
) -> Result<(), E> {
    if bytes.len() <= PIECE_BYTES {
        return emit(Piece { record, bytes, source_bytes });
    }
    let mut source_bytes = Some(source_bytes);
    for part in bytes.chunks(PIECE_BYTES) {
        emit(Piece {
            record,
            bytes: part.to_vec(),
            source_bytes: source_bytes.take().unwrap_or(0),
        })?;
    }
    Ok(())
}

/// Values of `dtype`, held in f32, as they are stored: little-endian, float32 as bfloat16.
fn to_bytes(values: &[f32], dtype: Dtype) -> Vec<u8> {
    let bits = |&x: &f32| match dtype {
        Dtype::Float16 => half::f16::from_f32(x).to_bits(),
        _ => half::bf16::from_f32(x).to_bits(),
    };
    values.iter().flat_map(|x| bits(x).to_le_bytes()).collect()
}
