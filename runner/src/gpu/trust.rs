//! What wgpu takes on trust, the only unsafe code of the runner.
#![expect(
    unsafe_code,
    reason = "wgpu wants to be told that its experiments are meant and that no loop is endless"
)]

use super::caps::Caps;
use crate::kernels::Kernel;

/// Leave to use what wgpu calls experimental, for those who ask for it (`--caps +coop`).
pub(super) fn experimental(caps: Caps) -> wgpu::ExperimentalFeatures {
    if caps.cooperative.is_on() {
        // SAFETY: wgpu asks users to accept that these features may have faults, undefined behaviour among them, which is
        // why nothing but `+coop` turns them on. The one kernel that uses them keeps its loads and stores within arrays of
        // workgroup memory whose sizes are constants.
        unsafe { wgpu::ExperimentalFeatures::enabled() }
    } else {
        wgpu::ExperimentalFeatures::disabled()
    }
}

/// The module of a kernel, without the count of every loop's turns that wgpu adds: drivers do not unroll what counts
/// (docs/performance.md has what that costs).
pub(super) fn module(device: &wgpu::Device, kernel: &Kernel) -> wgpu::ShaderModule {
    let descriptor = wgpu::ShaderModuleDescriptor {
        label: Some(kernel.name),
        source: wgpu::ShaderSource::Wgsl(kernel.source.concat().into()),
    };
    let mut checks = wgpu::ShaderRuntimeChecks::checked();
    checks.force_loop_bounding = false;
    // SAFETY: all that is left out is the guard against endless loops. The modules are those of the table of kernels, whose
    // loops all count up to a length or down to zero in steps that are not zero; bounds are checked as ever.
    unsafe { device.create_shader_module_trusted(descriptor, checks) }
}
