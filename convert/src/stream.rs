//! The stream of records: bands are evaluated and quantised on all threads and emitted in order.

use std::sync::mpsc::sync_channel;

use packlight_formats::model::Weight;
use packlight_formats::quant::{Order, Rounding, Storage};
use rayon::prelude::*;

use crate::band::{Block, release};
use crate::check::{Conversion, PlannedWeight};
use crate::compensate::Compensated;
use crate::element::Element;
use crate::encode::Lines;
use crate::error::ConvertError;

/// Bands in flight per thread. They are emitted together, so more would only take memory.
const BANDS_PER_THREAD: usize = 16;
/// The longest piece that is emitted.
const PIECE_BYTES: usize = 1 << 20;

/// How work is cut, which bounds memory and does not show in the result.
#[derive(Clone, Copy)]
struct Cut {
    /// Values in a band: enough work to be worth a thread's while, little enough to stay in a cache.
    band: u64,
    /// Values in a strip of a transposed weight, whose codes (32 MiB at 4 bits) are held until all its rows are there.
    strip: u64,
}

const CUT: Cut = Cut { band: 1 << 16, strip: 1 << 26 };

/// Choices that do not change which records there are.
#[derive(Clone, Copy, Debug)]
pub struct StreamOptions {
    /// Convert NaN, infinities and overflows as the scheme does instead of stopping at the first.
    pub allow_non_finite: bool,
    /// For choosers that depend on it.
    pub rounding: Rounding,
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

/// What one thread encodes at a time.
struct Band {
    weight: usize,
    /// The first record of its weight.
    record: usize,
    block: Block,
    /// Nothing of its weight that comes later belongs before it in a record: it and what was held back can go out.
    ends_strip: bool,
    ends_weight: bool,
}

impl Conversion<'_> {
    /// Quantises everything but what is `compensated` already, calling `emit` with each piece. An error of `emit` ends
    /// the stream.
    ///
    /// Weights none of whose records is `wanted` are passed over; of the others every record is emitted. The pieces
    /// depend on the checkpoint, the scheme and the options only, not on the number of threads.
    pub fn stream<E: From<ConvertError>>(
        &self,
        options: StreamOptions,
        compensated: Option<&Compensated>,
        wanted: &[bool],
        emit: impl FnMut(Piece) -> Result<(), E>,
    ) -> Result<(), E> {
        self.stream_cut(CUT, &self.places_of(wanted), options, compensated, emit)
    }

    /// Bytes of the tensors that [`Conversion::stream`] reads for these records.
    pub fn source_bytes_for(&self, wanted: &[bool]) -> u64 {
        let weights = self.places_of(wanted).into_iter();
        weights.map(|(weight, _)| self.weights[weight].source_bytes(self.checkpoint)).sum()
    }

    /// The weights that some of these records belong to, each with its first record.
    fn places_of(&self, wanted: &[bool]) -> Vec<(usize, usize)> {
        let mut first = 0;
        let places = self.weights.iter().enumerate().filter_map(|(weight, planned)| {
            let records = first..first + planned.storage.records().count();
            let place = (weight, records.start);
            first = records.end;
            wanted[records].contains(&true).then_some(place)
        });
        places.collect()
    }

    /// The bytes of the records of one weight.
    pub(crate) fn records_of(
        &self,
        weight: usize,
        options: StreamOptions,
        compensated: &Compensated,
    ) -> Result<Vec<Vec<u8>>, ConvertError> {
        let mut records = vec![Vec::new(); self.weights[weight].storage.records().count()];
        self.stream_cut(CUT, &[(weight, 0)], options, Some(compensated), |piece| {
            records[piece.record].extend(piece.bytes);
            Ok::<_, ConvertError>(())
        })?;
        Ok(records)
    }

    /// Streams some weights, whose first records get the numbers beside them.
    fn stream_cut<E: From<ConvertError>>(
        &self,
        cut: Cut,
        weights: &[(usize, usize)],
        options: StreamOptions,
        compensated: Option<&Compensated>,
        mut emit: impl FnMut(Piece) -> Result<(), E>,
    ) -> Result<(), E> {
        let bands: Vec<Band> =
            weights.iter().flat_map(|&place| cut.bands(place, &self.weights[place.0])).collect();
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        let (mut source_bytes, mut all_scales) = (0, Vec::new());
        let batches = bands.chunks(BANDS_PER_THREAD * rayon::current_num_threads());
        let encode = |band: &Band| {
            self.encode(&self.weights[band.weight], &band.block, options, compensated)
        };
        ahead(batches, encode, |bands, encoded| {
            for (band, encoded) in bands.iter().zip(encoded) {
                let encoded = encoded?;
                let PlannedWeight { weight, .. } = &self.weights[band.weight];
                source_bytes += self.source_bytes_of(weight, &band.block);
                codes.push(encoded.values);
                scales.push(encoded.scales);
                if band.ends_strip {
                    let codes = interleave(std::mem::take(&mut codes));
                    emit_pieces(band.record, codes, std::mem::take(&mut source_bytes), &mut emit)?;
                    all_scales.extend(interleave(std::mem::take(&mut scales)));
                }
                if band.ends_weight && !all_scales.is_empty() {
                    let scales = std::mem::take(&mut all_scales);
                    emit_pieces(band.record + 1, scales, 0, &mut emit)?;
                }
            }
            // In one go, as every thread has to learn of it.
            for bands in bands.chunk_by(|a, b| a.weight == b.weight) {
                let rows = bands.iter().map(|band| &band.block.rows);
                let (start, end) = (rows.clone().map(|r| r.start), rows.map(|r| r.end));
                let rows = start.min().unwrap_or(0)..end.max().unwrap_or(0);
                release(self.checkpoint, &self.weights[bands[0].weight].weight, &rows);
            }
            Ok(())
        })
    }

    fn source_bytes_of(&self, weight: &Weight, block: &Block) -> u64 {
        let source = weight
            .recipe
            .sources()
            .first()
            .and_then(|source| self.checkpoint.tensor(&source.tensor));
        let size =
            source.and_then(|(_, tensor)| Element::of(tensor.dtype)).map_or(0, Element::bytes);
        block.height() * block.width() * size
    }
}

impl Cut {
    /// The bands of a weight: of all columns, top down; of a transposed weight strip by strip, as its record begins
    /// with the first words of every row.
    fn bands(self, (weight, record): (usize, usize), planned: &PlannedWeight) -> Vec<Band> {
        let (rows, columns) = (planned.weight.rows(), planned.weight.columns());
        let (strip, transposed) = match &planned.storage {
            Storage::Grouped { layout, order: Order::Kn, .. } => {
                let group = u64::from(layout.group);
                ((self.strip / (rows * group).max(1)).max(1) * group, true)
            }
            Storage::Grouped { order: Order::Nk, .. } | Storage::Plain(_) => (columns, false),
        };
        let step = |n: u64| usize::try_from(n.max(1)).unwrap_or(usize::MAX);
        let mut bands = Vec::new();
        for left in (0..columns).step_by(step(strip)) {
            let right = left.saturating_add(strip).min(columns);
            let height = (self.band / (right - left)).max(1);
            for top in (0..rows).step_by(step(height)) {
                let bottom = (top + height).min(rows);
                bands.push(Band {
                    weight,
                    record,
                    block: Block { rows: top..bottom, columns: left..right },
                    ends_strip: !transposed || bottom == rows,
                    ends_weight: bottom == rows && right == columns,
                });
            }
        }
        bands
    }
}

/// The first line of every band, then the second of every band, and so on.
fn interleave(mut bands: Vec<Lines>) -> Vec<u8> {
    if bands.len() == 1 {
        return bands.remove(0).bytes;
    }
    let count = bands.first().map_or(0, |lines| lines.count);
    let mut bytes = Vec::with_capacity(bands.iter().map(|lines| lines.bytes.len()).sum());
    for line in 0..count {
        for lines in &bands {
            bytes.extend_from_slice(lines.line(line));
        }
    }
    bytes
}

/// Calls `take` with each batch and its results, in order, while all threads are at work on the next.
fn ahead<T: Sync, R: Send, E>(
    batches: std::slice::Chunks<'_, T>,
    work: impl Fn(&T) -> R + Sync + Send,
    mut take: impl FnMut(&[T], Vec<R>) -> Result<(), E>,
) -> Result<(), E> {
    std::thread::scope(|scope| {
        // One waits while one is taken and one is worked on.
        let (queue, done) = sync_channel(1);
        let ours = batches.clone();
        scope.spawn(move || {
            for batch in ours {
                // Nobody takes them any more after an error.
                if queue.send(batch.par_iter().map(&work).collect()).is_err() {
                    break;
                }
            }
        });
        batches.zip(done).try_for_each(|(batch, results)| take(batch, results))
    })
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
        let source_bytes = source_bytes.take().unwrap_or(0);
        emit(Piece { record, bytes: part.to_vec(), source_bytes })?;
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "the demo model is small")]
mod tests {
    use super::*;
    use crate::Checkpoint;
    use packlight_formats::RecordSpec;
    use packlight_formats::quant::{Codes, Scheme};

    /// The records of the demo checkpoint under a scheme.
    fn records(scheme: &str, cut: Cut) -> Vec<(RecordSpec, Vec<u8>)> {
        let demo = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../demo"));
        let checkpoint = Checkpoint::open(demo).unwrap();
        let (scheme, codes) = (Scheme::find(scheme).unwrap(), Codes::find("mlc").unwrap());
        let conversion = Conversion::plan(&checkpoint, scheme, &[], codes).unwrap();
        let mut records: Vec<_> =
            conversion.records().into_iter().map(|spec| (spec, Vec::new())).collect();
        let options = StreamOptions { allow_non_finite: false, rounding: Rounding::Even };
        let all = conversion.places_of(&vec![true; records.len()]);
        let stream =
            conversion.stream_cut(cut, &all, options, None, |Piece { record, bytes, .. }| {
                records[record].1.extend(bytes);
                Ok::<_, ConvertError>(())
            });
        stream.unwrap();
        records
    }

    #[test]
    fn kn_is_nk_transposed() {
        for (kn, nk) in [("q4bf16_0", "q4bf16_1"), ("q3f16_0", "q3f16_1")] {
            for ((kn, found), (nk, bytes)) in records(kn, CUT).into_iter().zip(records(nk, CUT)) {
                if kn.shape == nk.shape {
                    assert_eq!(found, bytes, "{}", kn.name);
                    continue;
                }
                let [rows, columns] = nk.shape[..] else { panic!("a matrix") };
                assert_eq!(kn.shape, [columns, rows]);
                let (width, size) = (columns as usize, nk.dtype.bytes() as usize);
                let element = |r: usize, c: usize| &bytes[(r * width + c) * size..][..size];
                let expected: Vec<u8> = (0..width)
                    .flat_map(|c| (0..rows as usize).map(move |r| (r, c)))
                    .flat_map(|(r, c)| element(r, c).to_vec())
                    .collect();
                assert_eq!(found, expected, "{}", kn.name);
            }
        }
    }

    #[test]
    fn records_that_are_not_wanted_cost_nothing_and_change_nothing() {
        let demo = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../demo"));
        let checkpoint = Checkpoint::open(demo).unwrap();
        let codes = Codes::find("mlc").unwrap();
        let conversion = Conversion::plan(&checkpoint, Scheme::DEFAULT, &[], codes).unwrap();
        let all = records(Scheme::DEFAULT.name, CUT);
        let options = StreamOptions { allow_non_finite: false, rounding: Rounding::Even };
        for keep in [1, 2, 7] {
            let wanted: Vec<bool> = (0..all.len()).map(|i| i % keep == keep - 1).collect();
            let (mut found, mut read) = (vec![Vec::new(); all.len()], 0);
            let stream = conversion.stream(options, None, &wanted, |piece| {
                found[piece.record].extend(piece.bytes);
                read += piece.source_bytes;
                Ok::<_, ConvertError>(())
            });
            stream.unwrap();
            for (i, (spec, bytes)) in all.iter().enumerate() {
                // The other record of a weight comes along.
                assert!(found[i] == *bytes || (!wanted[i] && found[i].is_empty()), "{}", spec.name);
            }
            assert_eq!(read, conversion.source_bytes_for(&wanted));
        }
    }

    #[test]
    fn how_work_is_cut_does_not_show() {
        // Strips of one group and of a few, bands that leave a remainder, bands of one row.
        for cut in [Cut { band: 1, strip: 1 }, Cut { band: 3000, strip: 50_000 }] {
            for scheme in ["q4f16_0", "q4f16_1", "q3f16_0", "q0f32"] {
                assert!(records(scheme, cut) == records(scheme, CUT), "{scheme}");
            }
        }
    }
}
