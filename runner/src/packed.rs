//! Packed weights of a bundle in host memory, decoded a row at a time: what the CPU reference runs from.

use std::borrow::Cow;
use std::collections::HashMap;

use packlight_formats::quant::{Order, Storage};
use packlight_formats::{Dtype, RecordSpec};

use crate::executor::WeightSink;
use crate::plan::PlanWeight;

/// Records that do not match the plan.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PackedError {
    #[error("record `{record}` is missing or incomplete in the bundle")]
    Missing { record: String },
    #[error("record `{record}` is not used by the model")]
    Unknown { record: String },
    #[error("record `{}` is {} {:?}, but the model needs {} {:?}", .found.name, .found.dtype, .found.shape, .expected.dtype, .expected.shape)]
    Wrong { expected: RecordSpec, found: RecordSpec },
    #[error("record `{record}`: a piece at byte {offset} is out of order or too long")]
    BadPiece { record: String, offset: u64 },
}

/// Records of a plan, as they are stored.
#[derive(Debug, Default)]
pub struct PackedWeights {
    records: HashMap<String, Stored>,
}

#[derive(Debug)]
struct Stored {
    spec: RecordSpec,
    bytes: Vec<u8>,
}

impl PackedWeights {
    /// Room for every record of these weights.
    pub(crate) fn of<'a>(weights: impl IntoIterator<Item = &'a PlanWeight>) -> Self {
        let specs = weights.into_iter().flat_map(|weight| weight.storage.records());
        let empty = |spec: &RecordSpec| {
            (spec.name.clone(), Stored { spec: spec.clone(), bytes: Vec::new() })
        };
        Self { records: specs.map(empty).collect() }
    }

    /// Every record has arrived whole.
    pub(crate) fn finish(&self) -> Result<(), PackedError> {
        let short = self
            .records
            .values()
            .filter(|stored| (stored.bytes.len() as u64) < stored.spec.stored_bytes());
        match short.map(|stored| &stored.spec.name).min() {
            Some(name) => Err(PackedError::Missing { record: name.clone() }),
            None => Ok(()),
        }
    }

    /// Lets go of a weight's bytes.
    pub(crate) fn forget(&mut self, weight: &PlanWeight) {
        for record in weight.storage.records() {
            if let Some(stored) = self.records.get_mut(&record.name) {
                stored.bytes = Vec::new();
            }
        }
    }

    /// Writes row `n` of a matrix `[rows, columns]`, decoded.
    pub(crate) fn row(&self, weight: &PlanWeight, n: usize, out: &mut [f32]) {
        let order = match weight.storage {
            Storage::Grouped { order, .. } => order,
            Storage::Plain(_) => Order::Nk,
        };
        let row = |record| self.row_of(record, order, weight.rows, n);
        match &weight.storage {
            Storage::Grouped { q_weight, q_scale, .. } => {
                decode_row(&weight.storage, &[row(q_weight), row(q_scale)], out);
            }
            Storage::Plain(record) => decode_row(&weight.storage, &[row(record)], out),
        }
    }

    /// The bytes of row `n` of a record with that many rows; all there once [`PackedWeights::finish`] has passed.
    fn row_bytes(&self, record: &RecordSpec, rows: u32, n: usize) -> &[u8] {
        let bytes = self.records.get(&record.name).map_or(&[][..], |stored| &stored.bytes);
        let length = bytes.len() / rows as usize;
        &bytes[n * length..][..length]
    }

    /// The same, of a record that may be transposed: then the elements of a row are `rows` apart.
    fn row_of(&self, record: &RecordSpec, order: Order, rows: u32, n: usize) -> Cow<'_, [u8]> {
        match order {
            Order::Nk => self.row_bytes(record, rows, n).into(),
            Order::Kn => {
                let bytes = self.records.get(&record.name).map_or(&[][..], |stored| &stored.bytes);
                let size = usize::try_from(record.stored.bytes()).unwrap_or(usize::MAX);
                let elements = bytes.chunks_exact(size);
                elements.skip(n).step_by(rows as usize).flatten().copied().collect()
            }
        }
    }
}

/// Decodes a row of a matrix from its bytes in each of the storage's records.
pub(crate) fn decode_row(storage: &Storage, records: &[impl AsRef<[u8]>], out: &mut [f32]) {
    match (storage, records) {
        (Storage::Grouped { layout, q_scale, .. }, [codes, scales]) => {
            let words: Vec<u32> = words(codes.as_ref()).collect();
            let scales: Vec<f32> = values(q_scale.stored, scales.as_ref()).collect();
            layout.decode_row(&words, &scales, out);
        }
        (Storage::Plain(record), [row]) => {
            let row = values(record.stored, row.as_ref());
            out.iter_mut().zip(row).for_each(|(out, value)| *out = value);
        }
        _ => unreachable!("a row has a part in every record of its storage"),
    }
}

/// Packed codes.
fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

/// Stored values as f32.
fn values(stored: Dtype, bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.chunks_exact(if stored.bytes() == 4 { 4 } else { 2 }).map(move |b| match (stored, b) {
        (Dtype::Float16, &[a, b]) => half::f16::from_le_bytes([a, b]).to_f32(),
        (_, &[a, b]) => half::bf16::from_le_bytes([a, b]).to_f32(),
        (_, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
        _ => unreachable!("two or four bytes a value"),
    })
}

impl WeightSink for PackedWeights {
    type Error = PackedError;

    fn write(&mut self, record: &RecordSpec, offset: u64, bytes: &[u8]) -> Result<(), PackedError> {
        let Some(stored) = self.records.get_mut(&record.name) else {
            return Err(PackedError::Unknown { record: record.name.clone() });
        };
        if stored.spec != *record {
            return Err(PackedError::Wrong {
                expected: stored.spec.clone(),
                found: record.clone(),
            });
        }
        if offset != stored.bytes.len() as u64
            || offset + bytes.len() as u64 > record.stored_bytes()
        {
            return Err(PackedError::BadPiece { record: record.name.clone(), offset });
        }
        if stored.bytes.is_empty() {
            // Growing by doubling would hold the largest tables twice.
            stored.bytes.reserve_exact(usize::try_from(record.stored_bytes()).unwrap_or(0));
        }
        stored.bytes.extend_from_slice(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::Weights as _;

    /// The same values as bfloat16, as float32 that travels as bfloat16, and as float32 that does not.
    #[test]
    fn values_are_read_in_every_length() {
        let values = [1.0f32, -0.171_875, 3.0e38, 0.0];
        let halves: Vec<u8> =
            values.iter().flat_map(|&v| half::bf16::from_f32(v).to_le_bytes()).collect();
        let singles: Vec<u8> =
            values.iter().flat_map(|&v| half::bf16::from_f32(v).to_f32().to_le_bytes()).collect();
        let expected = values.map(|v| half::bf16::from_f32(v).to_f32());
        for (record, bytes) in [
            (RecordSpec::new("w", Dtype::Bfloat16, [4]), &halves),
            (RecordSpec::new("w", Dtype::Float32, [4]), &halves),
            (RecordSpec::new("w", Dtype::Float32, [4]).native(), &singles),
        ] {
            let storage = Storage::Plain(record.clone());
            let weight = PlanWeight { name: "w".into(), rows: 4, columns: 1, storage };
            let mut weights = PackedWeights::of([&weight]);
            weights.write(&record, 0, bytes).unwrap();
            weights.finish().unwrap();
            assert_eq!(weights.vector(&weight), expected, "{record:?}");
        }
    }
}
