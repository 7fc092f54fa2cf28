//! Element types that weights come in.

use half::f16;
use half::slice::HalfFloatSliceExt as _;
use packlight_formats::fp8::E4M3;
use packlight_formats::quant::float::{round_bf16, round_f16};

/// An element type of a checkpoint's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    F32,
    F16,
    Bf16,
    /// fp8 with four exponent bits; means nothing without its scales.
    E4m3,
}

impl Element {
    /// `None` for what is not read as a weight.
    pub(crate) fn of(dtype: safetensors::Dtype) -> Option<Self> {
        match dtype {
            safetensors::Dtype::F32 => Some(Self::F32),
            safetensors::Dtype::F16 => Some(Self::F16),
            safetensors::Dtype::BF16 => Some(Self::Bf16),
            safetensors::Dtype::F8_E4M3 => Some(Self::E4m3),
            _ => None,
        }
    }

    pub(crate) fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::E4m3 => 1,
        }
    }

    /// The nearest value of this type; of fp8, which nothing is computed in, the value itself.
    pub(crate) fn round(self, x: f32) -> f32 {
        match self {
            Self::F32 | Self::E4m3 => x,
            Self::F16 => round_f16(x),
            Self::Bf16 => round_bf16(x),
        }
    }

    /// Appends every element of `bytes`.
    pub(crate) fn read(self, bytes: &[u8], out: &mut Vec<f32>) {
        let pairs = || bytes.as_chunks().0.iter().map(|&pair| u16::from_le_bytes(pair));
        match self {
            Self::F32 => {
                out.extend(bytes.as_chunks().0.iter().map(|&four| f32::from_le_bytes(four)));
            }
            Self::F16 => {
                let halves: Vec<f16> = pairs().map(f16::from_bits).collect();
                let start = out.len();
                out.resize(start + halves.len(), 0.0);
                halves.convert_to_f32_slice(&mut out[start..]);
            }
            Self::Bf16 => out.extend(pairs().map(|bits| f32::from_bits(u32::from(bits) << 16))),
            Self::E4m3 => out.extend(bytes.iter().map(|&byte| E4M3[usize::from(byte)])),
        }
    }
}
