//! A record: one named array of a bundle, the unit that flows from the converter to the packer and out of a bundle again.

use serde::{Deserialize, Serialize};

use crate::dtype::{Dtype, elements};

/// Name, element type and shape of a record. Its data is little-endian, C order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordSpec {
    /// The bundle's name for it, `model.layers.0.mlp.down_proj.q_weight`.
    pub name: String,
    /// Element type in memory.
    pub dtype: Dtype,
    /// Element type in a shard: [`Dtype::stored`] of the other, save where a bundle holds float32 as it is.
    pub stored: Dtype,
    /// Outermost dimension first.
    pub shape: Vec<u64>,
}

impl RecordSpec {
    /// A record whose shape is known to multiply without overflow.
    pub fn new(name: impl Into<String>, dtype: Dtype, shape: impl Into<Vec<u64>>) -> Self {
        Self { name: name.into(), dtype, stored: dtype.stored(), shape: shape.into() }
    }

    /// The same record with its elements stored as they are in memory.
    #[must_use]
    pub fn native(self) -> Self {
        Self { stored: self.dtype, ..self }
    }

    /// Number of elements; saturates, so that a lying shape is never mistaken for a small one.
    pub fn elements(&self) -> u64 {
        elements(&self.shape).unwrap_or(u64::MAX)
    }

    /// Bytes in memory, which is what MLC's `ParamBytes` counts.
    pub fn memory_bytes(&self) -> u64 {
        self.elements().saturating_mul(self.dtype.bytes())
    }

    /// Bytes in a shard.
    pub fn stored_bytes(&self) -> u64 {
        self.elements().saturating_mul(self.stored.bytes())
    }
}
