//! The plan on WebGPU. All wgpu code lives here; what the kernels compute is in [`crate::kernels`].

mod arena;
mod buffers;
mod caps;
mod device;
mod error;
mod executor;
mod flow;
mod pipelines;
mod place;
mod profile;
mod readback;
mod steps;
mod trust;
#[cfg(test)]
pub(crate) mod tests;

pub use caps::{Caps, Feature, SubgroupSizes};
pub use device::{Adapter, Gpu, Listed, adapters};
pub use error::{CapacityError, GpuError, PlanError, UploadError};
pub use executor::GpuExecutor;
pub use profile::Timed;
pub use place::{Piece, Placed, Placement, Region, Scales, Words, largest_capacity};
