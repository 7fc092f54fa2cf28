//! Element types of checkpoints and of bundle records.

use serde::{Deserialize, Serialize};

/// An element type, spelled in JSON as `tensor-cache.json` spells it (numpy's names).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// 32-bit unsigned words: packed codes.
    Uint32,
    /// IEEE half precision.
    Float16,
    /// The upper half of an IEEE single.
    Bfloat16,
    /// IEEE single precision.
    Float32,
}

impl Dtype {
    /// Bytes of one element in memory.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Uint32 | Self::Float32 => 4,
            Self::Float16 | Self::Bfloat16 => 2,
        }
    }

    /// The type of an element in a shard: float32 travels as bfloat16 (`f32-to-bf16`, tvm/contrib/tvmjs.py).
    #[must_use]
    pub const fn stored(self) -> Self {
        match self {
            Self::Float32 => Self::Bfloat16,
            other => other,
        }
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Uint32 => "uint32",
            Self::Float16 => "float16",
            Self::Bfloat16 => "bfloat16",
            Self::Float32 => "float32",
        })
    }
}

/// Elements in a tensor of this shape, or `None` where the product overflows.
pub fn elements(shape: &[u64]) -> Option<u64> {
    shape.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim))
}
