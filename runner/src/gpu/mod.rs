//! The plan on WebGPU. All wgpu code lives here; what the kernels compute is in [`crate::kernels`].

mod arena;
mod buffers;
mod caps;
mod device;
mod error;
mod executor;
mod flow;
mod loader;
mod pipelines;
mod place;
mod profile;
mod readback;
mod steps;
#[cfg(test)]
pub(crate) mod tests;
mod trust;

pub use caps::{Caps, Feature, SubgroupSizes};
pub use device::{Adapter, Gpu, Listed, adapters};
pub use error::{CapacityError, GpuError, PlanError, UploadError};
pub use executor::GpuExecutor;
pub use loader::GpuLoader;
pub use place::{Floats, Piece, Placed, Placement, Region, Words, largest_capacity};
pub use profile::Timed;
