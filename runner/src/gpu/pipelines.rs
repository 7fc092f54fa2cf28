//! Pipelines: one for each kernel and set of constants, whatever the number of layers.

use std::collections::BTreeMap;

use super::device::Gpu;
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
    /// By kernel, threads and constants.
    made: BTreeMap<(&'static str, u32, Vec<u32>), Pipeline>,
}

impl Pipelines {
    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.made.len()
    }

    /// The pipeline of a call; a new one is made inside of [`Gpu::scoped`] only.
    pub(super) fn get(&mut self, gpu: &Gpu, call: &Call) -> &Pipeline {
        let key = (call.kernel.name, call.threads, call.overrides.clone());
        self.made.entry(key).or_insert_with(|| make(gpu, call))
    }
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
    let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
        label,
        source: wgpu::ShaderSource::Wgsl(kernel.source.concat().into()),
    });
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
