//! The weights on the device: a few big buffers, filled record by record as a bundle is read.

use std::collections::BTreeMap;

use packlight_formats::quant::Storage;
use packlight_formats::{Dtype, RecordSpec};

use super::device::Gpu;
use super::error::{GpuError, UploadError};
use super::place::{Placed, Placement, Region};
use crate::plan::Plan;

/// Bytes handed to wgpu before its staging memory is waited for. Two such windows can be in flight.
const WINDOW_BYTES: u64 = 32 << 20;

/// Buffers and what is still missing in them.
#[derive(Debug)]
pub(super) struct Arena {
    buffers: Vec<wgpu::Buffer>,
    /// By the record's name.
    records: BTreeMap<String, Upload>,
    window: u64,
    submitted: Option<wgpu::SubmissionIndex>,
}

/// A record on its way.
#[derive(Debug)]
struct Upload {
    spec: RecordSpec,
    written: u64,
    target: Target,
}

#[derive(Clone, Debug)]
enum Target {
    /// The record's bytes as they are, region after region.
    Raw(Vec<Region>),
    /// Whatever the record's type, f32 on the device.
    Expanded(Region),
}

impl Arena {
    /// Allocates the buffers; call it inside of [`Gpu::scoped`].
    pub(super) fn new(gpu: &Gpu, plan: &Plan, placement: &Placement) -> Self {
        let buffer = |(i, &bytes): (usize, &u64)| {
            gpu.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some(&format!("weights {i}")),
                size: bytes.next_multiple_of(4),
                usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST,
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
        Self { buffers, records, window: 0, submitted: None }
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
        match &upload.target {
            Target::Raw(regions) => {
                for (region, at, part) in split(regions, offset, bytes) {
                    write_padded(
                        &gpu.queue,
                        &self.buffers[region.buffer],
                        region.offset + at,
                        part,
                    );
                }
            }
            Target::Expanded(region) => {
                let values = expand(record.stored, bytes);
                let at = region.offset + offset / record.stored.bytes() * 4;
                let bytes = bytemuck::cast_slice(&values);
                gpu.queue.write_buffer(&self.buffers[region.buffer], at, bytes);
            }
        }
        self.flow(gpu, bytes.len() as u64, name)
    }

    /// Whether every record is there; else the first that is not.
    pub(super) fn finish(&self) -> Result<(), UploadError> {
        let mut missing = self.records.values().filter(|upload| !upload.is_whole()).peekable();
        let Some(first) = missing.peek() else { return Ok(()) };
        let (record, written, bytes) =
            (first.spec.name.clone(), first.written, first.spec.stored_bytes());
        Err(UploadError::Incomplete { record, written, bytes, missing: missing.count() })
    }

    /// Keeps wgpu's staging memory bounded: it is given back when a submission that uses it is done.
    fn flow(&mut self, gpu: &Gpu, bytes: u64, record: &str) -> Result<(), GpuError> {
        self.window += bytes;
        if self.window < WINDOW_BYTES {
            return Ok(());
        }
        self.window = 0;
        let doing = format!("uploading `{record}`");
        let earlier = self.submitted.replace(gpu.queue.submit([]));
        if earlier.is_some() {
            gpu.wait(earlier, &doing)?;
        }
        gpu.check(&doing)
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
    let targets = match placed {
        Placed::Matrix { pieces, .. } => vec![
            Target::Raw(pieces.iter().map(|piece| piece.codes).collect()),
            Target::Raw(pieces.iter().filter_map(|piece| piece.scales).collect()),
        ],
        Placed::Vector(region) => vec![Target::Expanded(*region)],
        Placed::Host => Vec::new(),
    };
    let upload =
        |(spec, target): (&RecordSpec, _)| Upload { spec: spec.clone(), written: 0, target };
    storage.records().zip(targets).map(upload).collect()
}

/// Cuts bytes that start at `offset` of a record at the borders of its regions: region, where in it, which bytes.
fn split<'a>(
    regions: &[Region],
    offset: u64,
    bytes: &'a [u8],
) -> impl Iterator<Item = (Region, u64, &'a [u8])> {
    let end = offset + bytes.len() as u64;
    let mut start = 0;
    regions.iter().filter_map(move |&region| {
        let (first, last) = (offset.max(start), end.min(start + region.bytes));
        let at = first.saturating_sub(start);
        start += region.bytes;
        // Differences within a slice fit its index type.
        let index = |position: u64| usize::try_from(position - offset).ok();
        (first < last).then(|| Some((region, at, bytes.get(index(first)?..index(last)?)?)))?
    })
}

/// wgpu copies whole words; the last two bytes of an odd number of halves are followed by zeros.
fn write_padded(queue: &wgpu::Queue, buffer: &wgpu::Buffer, offset: u64, bytes: &[u8]) {
    let (words, rest) = bytes.split_at(bytes.len() / 4 * 4);
    queue.write_buffer(buffer, offset, words);
    if !rest.is_empty() {
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        queue.write_buffer(buffer, offset + words.len() as u64, &last);
    }
}

/// Stored values as f32.
fn expand(stored: Dtype, bytes: &[u8]) -> Vec<f32> {
    let halves = bytes.chunks_exact(2).map(|half| u16::from_le_bytes([half[0], half[1]]));
    match stored {
        Dtype::Float16 => halves.map(|bits| half::f16::from_bits(bits).to_f32()).collect(),
        Dtype::Bfloat16 => halves.map(|bits| half::bf16::from_bits(bits).to_f32()).collect(),
        Dtype::Float32 | Dtype::Uint32 => {
            let words = bytes.chunks_exact(4);
            words.map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upload(target: Target) -> Upload {
        let spec = RecordSpec::new("w", Dtype::Float16, [5]);
        Upload { spec, written: 0, target }
    }

    #[test]
    fn pieces_of_a_record_come_in_order_and_within_it() {
        let region = Region { buffer: 0, offset: 0, bytes: 20 };
        let mut upload = upload(Target::Expanded(region));
        let spec = upload.spec.clone();
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

    #[test]
    fn a_write_is_cut_at_region_borders() {
        let region = |buffer, bytes| Region { buffer, offset: 256, bytes };
        let regions = [region(0, 8), region(1, 8), region(2, 4)];
        let bytes: Vec<u8> = (4..18).collect();
        let parts: Vec<_> = split(&regions, 4, &bytes)
            .map(|(region, at, part)| (region.buffer, at, part.to_vec()))
            .collect();
        let expected =
            [(0, 4, (4..8).collect()), (1, 0, (8..16).collect()), (2, 0, vec![16u8, 17])];
        assert_eq!(parts, expected);
    }

    #[test]
    fn values_expand_by_the_type_they_are_stored_in() {
        let bytes = [0x00, 0x3c, 0x80, 0xbf];
        assert_eq!(expand(Dtype::Float16, &bytes)[0].to_bits(), 1f32.to_bits());
        assert_eq!(expand(Dtype::Bfloat16, &bytes)[1].to_bits(), (-1f32).to_bits());
        assert_eq!(expand(Dtype::Float32, &(-1f32).to_le_bytes())[0].to_bits(), (-1f32).to_bits());
    }
}
