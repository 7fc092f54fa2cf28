//! What can go wrong on the GPU. Every variant says what was being done to what, and why it failed.

use crate::executor::CallError;
use crate::kernels::GridError;

/// Any failure of this module.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    #[error("no WebGPU adapter was found")]
    NoAdapter,
    #[error("`{adapter}` cannot be opened: {source}")]
    Device { adapter: String, source: wgpu::RequestDeviceError },
    #[error("`{adapter}` has no f16, which `+f16` asks for")]
    NoF16 { adapter: String },
    #[error("out of device memory while {doing}")]
    OutOfMemory { doing: String },
    #[error("the device refused {doing}: {why}")]
    Refused { doing: String, why: String },
    #[error("the device was lost while {doing}: {why}")]
    Lost { doing: String, why: String },
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Capacity(#[from] CapacityError),
    #[error(transparent)]
    Upload(#[from] UploadError),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("{place}: {source}")]
    Grid { place: String, source: GridError },
}

impl GpuError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NoAdapter => {
                "install a Vulkan driver (Debian: mesa-vulkan-drivers), or use --device cpu"
            }
            Self::NoF16 { .. } => "leave `+f16` out of --caps; `packlight devices` lists what adapters have",
            Self::OutOfMemory { .. } => {
                "close what else uses the GPU, or shorten the context (-n); --device cpu needs no GPU memory"
            }
            Self::Lost { .. } => {
                "the driver reset the GPU or it was unplugged: try again, or use --device cpu"
            }
            Self::Capacity(CapacityError::Context { .. }) => {
                "shorten the prompt or lower -n; --device cpu has no such limit"
            }
            Self::Upload(_) => "the bundle is damaged: `packlight verify` lists everything wrong with it",
            Self::Device { .. }
            | Self::Refused { .. }
            | Self::Plan(_)
            | Self::Capacity(_)
            | Self::Grid { .. } => "--device cpu runs the CPU reference instead",
            Self::Call(_) => return None,
        }
        .into())
    }
}

/// A plan that this device, or this program, cannot run.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("no kernel for `{op}` works within the device's limits: {why}")]
    NoKernel { op: &'static str, why: String },
    #[error("`{weight}` cannot be used on the GPU: {why}")]
    Weight { weight: String, why: String },
    #[error("`{weight}`: two rows take {bytes} bytes, but a binding has at most {limit}")]
    Row { weight: String, bytes: u64, limit: u64 },
    #[error(
        "{place}: heads of {head_dim} values are wider than the {widest} that a kernel can hold"
    )]
    HeadDim { place: String, head_dim: u32, widest: u32 },
}

/// Buffers that do not fit the device's limits.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CapacityError {
    #[error(
        "the capacity has no room for anything: context {context}, chunk {chunk}, outputs {outputs}"
    )]
    Empty { context: u32, chunk: u32, outputs: u32 },
    #[error(
        "a KV cache for {context} positions is larger than the device's limit of {limit} bytes per binding; {fits} positions fit"
    )]
    Context { context: u32, fits: u32, limit: u64 },
    #[error(
        "activations of {chunk} tokens are larger than the device's limit of {limit} bytes per binding; {fits} tokens fit"
    )]
    Chunk { chunk: u32, fits: u32, limit: u64 },
    #[error(
        "logits of {outputs} tokens are larger than the device's limit of {limit} bytes per binding; {fits} tokens fit"
    )]
    Outputs { outputs: u32, fits: u32, limit: u64 },
}

/// Records that do not match the plan.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum UploadError {
    #[error("record `{record}` is not used by the model")]
    Unknown { record: String },
    #[error("record `{record}` is {found}, but the model has {expected}")]
    Mismatch { record: String, found: String, expected: String },
    #[error(
        "record `{record}`: a piece starts at byte {offset}, but {written} bytes were written so far"
    )]
    Gap { record: String, offset: u64, written: u64 },
    #[error("record `{record}`: a piece ends at byte {end}, past its {bytes} bytes")]
    PastEnd { record: String, end: u64, bytes: u64 },
    #[error(
        "record `{record}`: a piece that is not the last ends at byte {end}, no multiple of four"
    )]
    Unaligned { record: String, end: u64 },
    #[error(
        "record `{record}` is incomplete: {written} of {bytes} bytes were written ({missing} records in all are incomplete)"
    )]
    Incomplete { record: String, written: u64, bytes: u64, missing: usize },
}
