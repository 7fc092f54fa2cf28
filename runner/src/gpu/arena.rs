//! The weights on the device: a few big buffers, filled record by record as a bundle is read.

use std::collections::BTreeMap;

use packlight_formats::quant::float::from_stored_bits;
use packlight_formats::quant::{Order, Storage};
use packlight_formats::{Dtype, RecordSpec};

use super::device::Gpu;
use super::error::{GpuError, UploadError};
use super::flow::Flow;
use super::place::{Floats, Placed, Placement, Region, Words};
use crate::plan::Plan;

/// Buffers and what is still missing in them.
#[derive(Debug)]
pub(super) struct Arena {
    buffers: Vec<wgpu::Buffer>,
    /// By the record's name.
    records: BTreeMap<String, Upload>,
    flow: Flow,
}

/// A record on its way.
#[derive(Debug)]
struct Upload {
    spec: RecordSpec,
    written: u64,
    target: Target,
}

/// Where a record goes: each of its lines is divided among the shares in the same way.
#[derive(Clone, Debug)]
struct Target {
    /// Bytes of a line in the record: all of it, or a row of a transposed matrix.
    line: u64,
    shares: Vec<Share>,
    /// The type of values in the record that are f32 on the device.
    widened: Option<Dtype>,
}

/// Consecutive bytes of every line, and the region where they lie together.
#[derive(Clone, Debug)]
struct Share {
    bytes: u64,
    region: Region,
}

impl Arena {
    /// Allocates the buffers; call it inside of [`Gpu::scoped`]. At most `in_flight` bytes are held while they go there.
    pub(super) fn new(gpu: &Gpu, plan: &Plan, placement: &Placement, in_flight: u64) -> Self {
        let buffer = |(i, &bytes): (usize, &u64)| {
            gpu.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some(&format!("weights {i}")),
                size: bytes.next_multiple_of(4),
                usage: wgpu::BufferUsages::STORAGE
                    | wgpu::BufferUsages::COPY_DST
                    | wgpu::BufferUsages::COPY_SRC,
                mapped_at_creation: false,
            })
        };
        let buffers = placement.buffers.iter().enumerate().map(buffer).collect();
        let records = plan
            .weights
            .iter()
            .zip(&placement.weights)
            .flat_map(|(weight, placed)| uploads(&weight.storage, placed))
            .map(|upload| (upload.spec.name.clone(), upload))
            .collect();
        Self { buffers, records, flow: Flow::new(in_flight) }
    }

    /// A region as something to bind.
    pub(super) fn binding(&self, region: Region) -> wgpu::BufferBinding<'_> {
        wgpu::BufferBinding {
            buffer: &self.buffers[region.buffer],
            offset: region.offset,
            size: wgpu::BufferSize::new(region.bytes),
        }
    }

    /// See [`crate::executor::WeightSink::write`].
    pub(super) fn write(
        &mut self,
        gpu: &Gpu,
        record: &RecordSpec,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), GpuError> {
        let name = &record.name;
        let upload = self
            .records
            .get_mut(name)
            .ok_or_else(|| UploadError::Unknown { record: name.clone() })?;
        upload.accept(record, offset, bytes.len() as u64)?;
        for Run { region, at, bytes } in upload.target.runs(offset, bytes) {
            let target = (&self.buffers[region.buffer], region.offset + at);
            if let Some(stored) = upload.target.widened {
                let values = widen(stored, bytes);
                self.flow.write(gpu, target, bytemuck::cast_slice(&values), name)?;
            } else {
                self.flow.write(gpu, target, bytes, name)?;
            }
        }
        Ok(())
    }

    /// See [`crate::executor::WeightSink::settle`].
    pub(super) async fn settle(&mut self, gpu: &Gpu) -> Result<(), GpuError> {
        self.flow.settle(gpu).await
    }

    /// Whether every record is there; else the first that is not.
    pub(super) fn finish(&self) -> Result<(), UploadError> {
        let mut missing = self.records.values().filter(|upload| !upload.is_whole()).peekable();
        let Some(first) = missing.peek() else { return Ok(()) };
        let (record, written, bytes) =
            (first.spec.name.clone(), first.written, first.spec.stored_bytes());
        Err(UploadError::Incomplete { record, written, bytes, missing: missing.count() })
    }
}

impl Upload {
    /// Checks a piece against what has come so far, and counts it.
    fn accept(&mut self, record: &RecordSpec, offset: u64, length: u64) -> Result<(), UploadError> {
        let name = || record.name.clone();
        if *record != self.spec {
            let text = |spec: &RecordSpec| format!("{} {:?}", spec.dtype, spec.shape);
            let (found, expected) = (text(record), text(&self.spec));
            return Err(UploadError::Mismatch { record: name(), found, expected });
        }
        if offset != self.written {
            return Err(UploadError::Gap { record: name(), offset, written: self.written });
        }
        let bytes = self.spec.stored_bytes();
        let end = offset.saturating_add(length);
        if end > bytes {
            return Err(UploadError::PastEnd { record: name(), end, bytes });
        }
        if end < bytes && !end.is_multiple_of(4) {
            return Err(UploadError::Unaligned { record: name(), end });
        }
        self.written = end;
        Ok(())
    }

    fn is_whole(&self) -> bool {
        self.written == self.spec.stored_bytes()
    }
}

/// The records of a weight and where they go.
fn uploads(storage: &Storage, placed: &Placed) -> Vec<Upload> {
    let records: Vec<&RecordSpec> = storage.records().collect();
    let targets = match placed {
        Placed::Matrix { words, pieces } => {
            let codes = pieces.iter().map(|piece| (piece.rows, piece.codes)).collect();
            let scales = pieces.iter().filter_map(|piece| Some((piece.rows, piece.scales?)));
            let (transposed, widened) = match *words {
                Words::Grouped { order, scales, .. } => {
                    (order == Order::Kn, scales == Floats::Float32)
                }
                Words::Plain { .. } => (false, false),
            };
            let target = |regions, record: &&RecordSpec, widened: bool| {
                Target::new(record, regions, transposed, widened.then_some(record.stored))
            };
            let targets = [codes, scales.collect()].into_iter().zip([false, widened]);
            let targets = targets.zip(&records);
            targets.map(|((regions, widened), record)| target(regions, record, widened)).collect()
        }
        Placed::Vector(region) => records
            .iter()
            .map(|record| Target::new(record, vec![(1, *region)], false, Some(record.stored)))
            .collect(),
        Placed::Host => Vec::new(),
    };
    let upload =
        |(spec, target): (&RecordSpec, _)| Upload { spec: spec.clone(), written: 0, target };
    records.into_iter().zip(targets).map(upload).collect()
}

/// A part of a record that lies together on the device.
struct Run<'a> {
    region: Region,
    /// Where in the region.
    at: u64,
    bytes: &'a [u8],
}

impl Target {
    /// Regions and how many rows of the matrix each has.
    fn new(
        record: &RecordSpec,
        regions: Vec<(u32, Region)>,
        transposed: bool,
        widened: Option<Dtype>,
    ) -> Self {
        let bytes = record.stored_bytes();
        let rows = regions.iter().map(|&(rows, _)| u64::from(rows)).sum::<u64>().max(1);
        // A single region has its lines one after the other, as the record has them.
        let line = if transposed && regions.len() > 1 {
            bytes / record.shape.first().copied().unwrap_or(1).max(1)
        } else {
            bytes
        };
        let share = |(share, region)| Share { bytes: line / rows * u64::from(share), region };
        Self { line, shares: regions.into_iter().map(share).collect(), widened }
    }

    /// Cuts bytes that start at `offset` of the record at the ends of lines and at the borders of shares.
    fn runs<'a>(&'a self, offset: u64, bytes: &'a [u8]) -> impl Iterator<Item = Run<'a>> {
        let end = offset + bytes.len() as u64;
        let line = self.line.max(1);
        (offset / line..end.div_ceil(line)).flat_map(move |i| {
            let mut start = i * line;
            self.shares.iter().filter_map(move |share| {
                let (first, last) = (offset.max(start), end.min(start + share.bytes));
                let at = i * share.bytes + first.saturating_sub(start);
                start += share.bytes;
                // Differences within a slice fit its index type.
                let index = |position: u64| usize::try_from(position - offset).ok();
                let at = self.widened.map_or(at, |stored| at / stored.bytes() * 4);
                let run = |bytes| Run { region: share.region, at, bytes };
                (first < last).then(|| bytes.get(index(first)?..index(last)?).map(run))?
            })
        })
    }
}

/// Stored values as f32.
fn widen(stored: Dtype, bytes: &[u8]) -> Vec<f32> {
    if stored == Dtype::Float32 {
        return bytes.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word)).collect();
    }
    let halves = bytes.as_chunks().0.iter().map(|&half| u16::from_le_bytes(half));
    halves.map(|bits| from_stored_bits(stored, bits)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(buffer: usize, bytes: u64) -> Region {
        Region { buffer, offset: 256, bytes }
    }

    #[test]
    fn pieces_of_a_record_come_in_order_and_within_it() {
        let spec = RecordSpec::new("w", Dtype::Float16, [5]);
        let target = Target::new(&spec, vec![(1, region(0, 20))], false, Some(Dtype::Float16));
        let mut upload = Upload { spec: spec.clone(), written: 0, target };
        let record = || "w".to_owned();
        assert_eq!(
            upload.accept(&spec, 0, 6),
            Err(UploadError::Unaligned { record: record(), end: 6 })
        );
        assert_eq!(upload.accept(&spec, 0, 4), Ok(()));
        assert_eq!(
            upload.accept(&spec, 8, 2),
            Err(UploadError::Gap { record: record(), offset: 8, written: 4 })
        );
        assert_eq!(
            upload.accept(&spec, 4, 8),
            Err(UploadError::PastEnd { record: record(), end: 12, bytes: 10 })
        );
        assert!(!upload.is_whole());
        assert_eq!(upload.accept(&spec, 4, 6), Ok(()));
        assert!(upload.is_whole());
        let other = RecordSpec::new("w", Dtype::Float16, [6]);
        assert!(matches!(upload.accept(&other, 10, 0), Err(UploadError::Mismatch { .. })));
    }

    /// Buffer, offset and bytes of the runs of a write.
    fn runs(target: &Target, offset: u64, bytes: &[u8]) -> Vec<(usize, u64, Vec<u8>)> {
        let runs = target.runs(offset, bytes);
        runs.map(|run| (run.region.buffer, run.at, run.bytes.to_vec())).collect()
    }

    #[test]
    fn a_write_is_cut_at_the_borders_of_regions() {
        let spec = RecordSpec::new("w", Dtype::Uint32, [5, 1]);
        let regions = vec![(2, region(0, 8)), (2, region(1, 8)), (1, region(2, 4))];
        let target = Target::new(&spec, regions, false, None);
        let bytes: Vec<u8> = (4..18).collect();
        let expected =
            [(0, 4, (4..8).collect()), (1, 0, (8..16).collect()), (2, 0, vec![16u8, 17])];
        assert_eq!(runs(&target, 4, &bytes), expected);
    }

    #[test]
    fn columns_of_a_transposed_record_come_together() {
        // [3, 5] two-byte values, widened: rows 0 and 1 to one region, 2 and 3 to another, the last to a third.
        let spec = RecordSpec::new("w", Dtype::Float16, [3, 5]);
        let regions = || vec![(2, region(0, 24)), (2, region(1, 24)), (1, region(2, 12))];
        let target = Target::new(&spec, regions(), true, Some(Dtype::Float16));
        let bytes: Vec<u8> = (4..24).collect();
        let expected = [
            (1, 0, (4..8).collect()),
            (2, 0, vec![8, 9]),
            (0, 8, (10..14).collect()),
            (1, 8, (14..18).collect()),
            (2, 4, vec![18, 19]),
            (0, 16, (20..24).collect()),
        ];
        assert_eq!(runs(&target, 4, &bytes), expected);
        let whole = Target::new(&spec, vec![(5, region(0, 60))], true, Some(Dtype::Float16));
        assert_eq!(runs(&whole, 4, &bytes), [(0, 8, bytes)]);
    }

    #[test]
    fn values_widen_by_the_type_they_are_stored_in() {
        let bytes = [0x00, 0x3c, 0x80, 0xbf];
        assert_eq!(widen(Dtype::Float16, &bytes)[0].to_bits(), 1f32.to_bits());
        assert_eq!(widen(Dtype::Bfloat16, &bytes)[1].to_bits(), (-1f32).to_bits());
        assert_eq!(widen(Dtype::Float32, &(-1f32).to_le_bytes())[0].to_bits(), (-1f32).to_bits());
    }
}
