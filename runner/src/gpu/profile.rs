//! How long each dispatch takes on the device, and how fast the device copies.

use std::time::Duration;

use super::device::Gpu;
use super::error::GpuError;
use super::executor::GpuExecutor;
use super::readback::Readback;
use crate::executor::{Inputs, Want};

/// One dispatch of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Timed {
    pub kernel: &'static str,
    /// Where in the model it belongs.
    pub place: String,
    pub time: Duration,
}

/// Bytes of each buffer of [`Gpu::copy_speed`]: far more than caches hold.
const COPIED: u64 = 256 << 20;
const COPIES: usize = 16;
const COPY_GROUPS: u32 = 4096;
/// The most queries that a set holds.
const MOST_QUERIES: usize = wgpu::QUERY_SET_MAX_QUERIES as usize;

impl GpuExecutor {
    /// Runs a call, which asks for the likeliest token, each dispatch in a pass of its own with times taken around it;
    /// `None` where the adapter has no timestamps. A pass of its own takes longer than one among others, so the times add
    /// up to more than those of the call.
    pub async fn profile(
        &mut self,
        inputs: Inputs<'_>,
        past: u32,
    ) -> Result<Option<Vec<Timed>>, GpuError> {
        const DOING: &str = "taking times";
        if !self.gpu.has_timestamps() {
            return Ok(None);
        }
        let begun = self.begin(inputs, past, Want::Argmax, 1)?[0];
        let dispatches: Vec<_> = self.pass(begun.live).chain(&self.argmax).collect();
        let device = &self.gpu.device;
        let mut readback = Readback::default();
        let mut timed = Vec::new();
        let mut ticks: Vec<u64> = Vec::new();
        for dispatches in dispatches.chunks(MOST_QUERIES / 2) {
            let count = u32::try_from(2 * dispatches.len()).unwrap_or(u32::MAX);
            let bytes = 8 * u64::from(count);
            let queries = device.create_query_set(&wgpu::QuerySetDescriptor {
                label: Some("times"),
                ty: wgpu::QueryType::Timestamp,
                count,
            });
            let resolved = device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("times"),
                size: bytes,
                usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
                mapped_at_creation: false,
            });
            let descriptor = wgpu::CommandEncoderDescriptor { label: Some("profile") };
            let mut encoder = device.create_command_encoder(&descriptor);
            let mut used = 0;
            for dispatch in dispatches {
                let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
                    label: None,
                    timestamp_writes: Some(wgpu::ComputePassTimestampWrites {
                        query_set: &queries,
                        beginning_of_pass_write_index: Some(used),
                        end_of_pass_write_index: Some(used + 1),
                    }),
                });
                let offsets = [self.buffers.live_offset(0)];
                if dispatch.encode(&mut pass, &self.gpu.caps(), begun.live, &offsets)? {
                    timed.push((dispatch.kernel, dispatch.place.clone()));
                    used += 2;
                }
            }
            encoder.resolve_query_set(&queries, 0..used, &resolved, 0);
            let bytes = 8 * u64::from(used);
            let result = readback.take(&self.gpu, bytes);
            encoder.copy_buffer_to_buffer(&resolved, 0, &result, 0, bytes);
            self.gpu.queue.submit([encoder.finish()]);
            self.gpu.check(DOING)?;
            ticks.extend(readback.read::<u64>(&self.gpu, result, bytes).await?);
        }
        let period = f64::from(self.gpu.queue.get_timestamp_period());
        let between = |pair: &[u64]| {
            let nanoseconds = pair[1].saturating_sub(pair[0]) as f64 * period;
            Duration::from_secs_f64(nanoseconds / 1e9)
        };
        let timed = timed.into_iter().zip(ticks.chunks_exact(2));
        let timed =
            timed.map(|((kernel, place), pair)| Timed { kernel, place, time: between(pair) });
        Ok(Some(timed.collect()))
    }
}

impl Gpu {
    /// Bytes that the device reads and writes a second where it copies a large buffer.
    pub async fn copy_speed(&self) -> Result<f64, GpuError> {
        const DOING: &str = "copying";
        let bytes = COPIED.min(self.caps().binding_bytes).min(self.caps().buffer_bytes);
        let bytes = bytes / 16 * 16;
        let buffer = |label| {
            self.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some(label),
                size: bytes,
                usage: wgpu::BufferUsages::STORAGE,
                mapped_at_creation: false,
            })
        };
        let make = || {
            let source = wgpu::ShaderSource::Wgsl(include_str!("copy.wgsl").into());
            let label = Some("copy");
            let module =
                self.device.create_shader_module(wgpu::ShaderModuleDescriptor { label, source });
            let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label,
                layout: None,
                module: &module,
                entry_point: Some("copy"),
                compilation_options: wgpu::PipelineCompilationOptions::default(),
                cache: None,
            });
            let buffers = [buffer("from"), buffer("to")];
            // One after the other, so that each copy waits for the last.
            let bind = |buffers: [&wgpu::Buffer; 2]| {
                let entries = [entry(0, buffers[0]), entry(1, buffers[1])];
                let layout = &pipeline.get_bind_group_layout(0);
                self.device.create_bind_group(&wgpu::BindGroupDescriptor {
                    label,
                    layout,
                    entries: &entries,
                })
            };
            let groups = [bind([&buffers[0], &buffers[1]]), bind([&buffers[1], &buffers[0]])];
            (pipeline, groups)
        };
        let (pipeline, groups) = self.scoped("allocating buffers to copy", make).await?;
        let copies = || {
            let descriptor = wgpu::CommandEncoderDescriptor { label: Some("copies") };
            let mut encoder = self.device.create_command_encoder(&descriptor);
            {
                let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
                pass.set_pipeline(&pipeline);
                for group in groups.iter().cycle().take(COPIES) {
                    pass.set_bind_group(0, group, &[]);
                    pass.dispatch_workgroups(COPY_GROUPS, 1, 1);
                }
            }
            self.queue.submit([encoder.finish()])
        };
        // Once before, since buffers are cleared when they are first used.
        let first = copies();
        self.wait(Some(first), DOING)?;
        let start = web_time::Instant::now();
        let submitted = copies();
        self.wait(Some(submitted), DOING)?;
        let moved = 2.0 * bytes as f64 * COPIES as f64;
        self.check(DOING)?;
        Ok(moved / start.elapsed().as_secs_f64())
    }
}

fn entry(binding: u32, buffer: &wgpu::Buffer) -> wgpu::BindGroupEntry<'_> {
    let buffer = buffer.as_entire_buffer_binding();
    wgpu::BindGroupEntry { binding, resource: wgpu::BindingResource::Buffer(buffer) }
}
