//! The packed weights of a bundle in host memory, decoded a row at a time.

use std::collections::HashMap;

use half::{bf16, f16};
use packlight_formats::quant::Storage;
use packlight_formats::{Dtype, RecordSpec};

use super::ReferenceError;
use crate::executor::WeightSink;
use crate::plan::{Plan, PlanWeight};

/// The records of a plan, as they are stored.
#[derive(Debug, Default)]
pub(super) struct Weights {
    records: HashMap<String, Stored>,
}

#[derive(Debug)]
struct Stored {
    spec: RecordSpec,
    bytes: Vec<u8>,
}

impl Weights {
    /// Room for every record that the plan reads.
    pub(super) fn of(plan: &Plan) -> Self {
        let specs = plan.weights.iter().flat_map(|weight| weight.storage.records());
        let empty = |spec: &RecordSpec| {
            (spec.name.clone(), Stored { spec: spec.clone(), bytes: Vec::new() })
        };
        Self { records: specs.map(empty).collect() }
    }

    /// Every record has arrived whole.
    pub(super) fn finish(&self) -> Result<(), ReferenceError> {
        let short = self
            .records
            .values()
            .filter(|stored| (stored.bytes.len() as u64) < stored.spec.stored_bytes());
        match short.map(|stored| &stored.spec.name).min() {
            Some(name) => Err(ReferenceError::MissingRecord { record: name.clone() }),
            None => Ok(()),
        }
    }

    /// Writes row `n` of a matrix `[rows, columns]`, decoded.
    pub(super) fn row(&self, weight: &PlanWeight, n: usize, out: &mut [f32]) {
        match &weight.storage {
            Storage::Grouped { layout, q_weight, q_scale } => {
                let words = self.row_bytes(q_weight, weight.rows, n).chunks_exact(4);
                let words: Vec<u32> =
                    words.map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
                let scales: Vec<f32> =
                    decode(q_scale.dtype, self.row_bytes(q_scale, weight.rows, n)).collect();
                layout.decode_row(&words, &scales, out);
            }
            Storage::Plain(record) => {
                let row = decode(record.dtype, self.row_bytes(record, weight.rows, n));
                out.iter_mut().zip(row).for_each(|(out, value)| *out = value);
            }
        }
    }

    /// A vector, decoded.
    pub(super) fn vector(&self, weight: &PlanWeight) -> Vec<f32> {
        let mut out = vec![0.0; weight.rows as usize];
        (0..).zip(out.chunks_mut(1)).for_each(|(n, out)| self.row(weight, n, out));
        out
    }

    /// The bytes of row `n` of a record with that many rows; all there once [`Weights::finish`] has passed.
    fn row_bytes(&self, record: &RecordSpec, rows: u32, n: usize) -> &[u8] {
        let bytes = self.records.get(&record.name).map_or(&[][..], |stored| &stored.bytes);
        let length = bytes.len() / rows as usize;
        &bytes[n * length..][..length]
    }
}

/// Stored 16-bit values as f32; float32 records are stored as bfloat16.
fn decode(dtype: Dtype, bytes: &[u8]) -> impl Iterator<Item = f32> {
    let halves = bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    halves.map(move |bits| match dtype {
        Dtype::Float16 => f16::from_bits(bits).to_f32(),
        _ => bf16::from_bits(bits).to_f32(),
    })
}

impl WeightSink for Weights {
    type Error = ReferenceError;

    fn write(
        &mut self,
        record: &RecordSpec,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), ReferenceError> {
        let Some(stored) = self.records.get_mut(&record.name) else {
            return Err(ReferenceError::UnknownRecord { record: record.name.clone() });
        };
        if stored.spec != *record {
            return Err(ReferenceError::WrongRecord {
                expected: stored.spec.clone(),
                found: record.clone(),
            });
        }
        if offset != stored.bytes.len() as u64
            || offset + bytes.len() as u64 > record.stored_bytes()
        {
            return Err(ReferenceError::BadPiece { record: record.name.clone(), offset });
        }
        stored.bytes.extend_from_slice(bytes);
        Ok(())
    }
}
