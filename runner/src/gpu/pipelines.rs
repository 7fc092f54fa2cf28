//! Pipelines: one for each kernel and set of constants, whatever the number of layers.

use std::collections::BTreeMap;

#[cfg(not(target_arch = "wasm32"))]
use rayon::prelude::*;

use super::device::Gpu;
use super::trust;
use crate::kernels::{Access, Call, Kernel};

/// A pipeline and the layout of its only bind group.
#[derive(Clone, Debug)]
pub(super) struct Pipeline {
    pub(super) compute: wgpu::ComputePipeline,
    pub(super) layout: wgpu::BindGroupLayout,
}

/// The pipelines made so far.
#[derive(Debug, Default)]
pub(super) struct Pipelines {
    made: BTreeMap<Key, Pipeline>,
}

impl Pipelines {
    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.made.len()
    }

    /// The pipeline of a call; a new one is made inside of [`Gpu::scoped`] only.
    pub(super) fn get(&mut self, gpu: &Gpu, call: &Call) -> &Pipeline {
        self.made.entry(key(call)).or_insert_with(|| make(gpu, call))
    }

    /// Makes those of all calls, on all threads: a driver's compiler takes its time. What goes wrong is found by
    /// [`Gpu::check`], since scopes belong to a thread.
    #[cfg(not(target_arch = "wasm32"))]
    pub(super) fn prepare(&mut self, gpu: &Gpu, calls: &[Call]) {
        let different: BTreeMap<Key, &Call> = calls.iter().map(|call| (key(call), call)).collect();
        let made = different.into_par_iter().map(|(key, call)| (key, make(gpu, call)));
        self.made.extend(made.collect::<Vec<_>>());
    }
}

/// Kernel, threads and constants.
type Key = (&'static str, u32, Vec<u32>);

fn key(call: &Call) -> Key {
    (call.kernel.name, call.threads, call.overrides.clone())
}

fn make(gpu: &Gpu, call: &Call) -> Pipeline {
    let kernel = call.kernel;
    let device = &gpu.device;
    let label = Some(kernel.name);
    let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
        label,
        entries: &entries(kernel),
    });
    let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
        label,
        bind_group_layouts: &[Some(&layout)],
        immediate_size: 0,
    });
    let module = trust::module(device, kernel);
    let values = call.overrides.iter().map(|&value| f64::from(value));
    let constants = kernel.overrides.iter().copied().zip(values);
    let constants: Vec<_> = constants.chain([("THREADS", f64::from(call.threads))]).collect();
    let compute = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label,
        layout: Some(&pipeline_layout),
        module: &module,
        entry_point: Some(kernel.entry),
        compilation_options: wgpu::PipelineCompilationOptions {
            constants: &constants,
            // Every kernel writes what it reads there.
            zero_initialize_workgroup_memory: false,
        },
        cache: None,
    });
    Pipeline { compute, layout }
}

/// `live` and `args` as uniforms, then the storage buffers of the table.
fn entries(kernel: &Kernel) -> Vec<wgpu::BindGroupLayoutEntry> {
    let storage =
        |access: &Access| wgpu::BufferBindingType::Storage { read_only: *access == Access::Read };
    let uniforms = [wgpu::BufferBindingType::Uniform; 2];
    let types = uniforms.into_iter().chain(kernel.buffers.iter().map(storage));
    (0..)
        .zip(types)
        .map(|(binding, ty)| wgpu::BindGroupLayoutEntry {
            binding,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty,
                // Calls that are given to the device together have a `live` each.
                has_dynamic_offset: binding == 0,
                min_binding_size: None,
            },
            count: None,
        })
        .collect()
}
