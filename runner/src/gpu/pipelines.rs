//! Pipelines: one for each kernel and set of constants, whatever the number of layers.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::mpsc;

use super::device::Gpu;
use super::error::GpuError;
use super::trust;
use crate::kernels::{Access, Call, Kernel};

/// A pipeline and the layout of its only bind group.
#[derive(Debug)]
pub(super) struct Pipeline {
    pub(super) compute: wgpu::ComputePipeline,
    pub(super) layout: wgpu::BindGroupLayout,
}

/// Every pipeline of a plan.
#[derive(Debug)]
pub(super) struct Pipelines {
    made: BTreeMap<Key, Pipeline>,
}

/// Pipelines that are being made.
#[derive(Debug)]
pub(super) struct Coming {
    made: mpsc::Receiver<(Key, Made)>,
}

/// A pipeline, once the device has judged it.
#[cfg(not(target_arch = "wasm32"))]
type Made = Pin<Box<dyn Future<Output = Result<Pipeline, GpuError>> + Send>>;
#[cfg(target_arch = "wasm32")]
type Made = Pin<Box<dyn Future<Output = Result<Pipeline, GpuError>>>>;

impl Pipelines {
    /// Begins to make those of all calls: on all threads, because a driver's compiler takes its time. A browser has it
    /// done elsewhere.
    pub(super) fn begin(gpu: &Gpu, calls: &[Call]) -> Coming {
        let different: BTreeMap<Key, &Call> = calls.iter().map(|call| (key(call), call)).collect();
        let (sender, made) = mpsc::channel();
        for (key, call) in different {
            let (gpu, call, sender) = (gpu.clone(), call.clone(), sender.clone());
            let task = move || {
                let device = gpu.clone();
                let made: Made =
                    Box::pin(gpu.scoped("making pipelines", move || make(&device, &call)));
                // Whoever waited for it may have failed in the meantime.
                let _ = sender.send((key, made));
            };
            #[cfg(not(target_arch = "wasm32"))]
            rayon::spawn(task);
            #[cfg(target_arch = "wasm32")]
            task();
        }
        Coming { made }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.made.len()
    }

    /// The pipeline of one of the calls that they were made for.
    pub(super) fn get(&self, call: &Call) -> Option<&Pipeline> {
        self.made.get(&key(call))
    }
}

impl Coming {
    /// Waits for all of them.
    pub(super) async fn made(self) -> Result<Pipelines, GpuError> {
        let mut made = BTreeMap::new();
        for (key, pipeline) in self.made {
            made.insert(key, pipeline.await?);
        }
        Ok(Pipelines { made })
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
