//! Runs a plan: buffers, pipelines and bind groups are made once, dispatches follow the live lengths of each call.

use std::collections::BTreeMap;

use packlight_formats::RecordSpec;
use packlight_formats::rope::Rope;

use super::arena::Arena;
use super::buffers::Buffers;
use super::caps::Caps;
use super::device::Gpu;
use super::error::GpuError;
use super::flow::IN_FLIGHT_BYTES;
use super::pipelines::Pipelines;
use super::place::{Placement, check_capacity};
use super::readback::Readback;
use crate::executor::{Capacity, Inputs, Live, Memory, Output, Want, WeightSink};
use crate::kernels::{self, Call, Work};
use crate::plan::{Plan, PlanWeight, SlotId};

/// A plan on a device. Write its weights through [`WeightSink`], then [`finish`](Self::finish), then
/// [`forward`](Self::forward).
#[derive(Debug)]
pub struct GpuExecutor {
    pub(super) gpu: Gpu,
    capacity: Capacity,
    memory: Memory,
    vocab: u32,
    logits: SlotId,
    logits_width: u64,
    ropes: Vec<Rope>,
    /// The text's length that positions are turned for.
    length: u32,
    arena: Arena,
    /// Tables that are not on the device, and the slots that their rows go to.
    host_tables: Vec<(PlanWeight, SlotId)>,
    loaded: bool,
    pub(super) buffers: Buffers,
    pub(super) dispatches: Vec<Dispatch>,
    argmax: Dispatch,
    pipelines: Pipelines,
    pub(super) readback: Readback,
}

/// A call, ready to be encoded.
#[derive(Debug)]
pub(super) struct Dispatch {
    pub(super) step: usize,
    place: String,
    pub(super) kernel: &'static str,
    work: Work,
    pipeline: wgpu::ComputePipeline,
    bind_group: wgpu::BindGroup,
}

impl GpuExecutor {
    /// Checks that the plan and the capacity fit the device, then allocates everything, weights included.
    pub async fn new(gpu: &Gpu, plan: &Plan, capacity: Capacity) -> Result<Self, GpuError> {
        check_capacity(plan, &gpu.caps(), capacity)?;
        let placement = Placement::new(plan, &gpu.caps())?;
        Self::placed(gpu, plan, capacity, &placement).await
    }

    /// The same with a placement that is already made.
    pub(super) async fn placed(
        gpu: &Gpu,
        plan: &Plan,
        capacity: Capacity,
        placement: &Placement,
    ) -> Result<Self, GpuError> {
        let calls = kernels::lower(plan, placement, &gpu.caps())?;
        Self::with_calls(gpu, plan, capacity, placement, calls).await
    }

    /// The same with the calls of a pass made as well.
    pub(crate) async fn with_calls(
        gpu: &Gpu,
        plan: &Plan,
        capacity: Capacity,
        placement: &Placement,
        mut calls: Vec<Call>,
    ) -> Result<Self, GpuError> {
        calls.push(kernels::argmax(plan, placement, &gpu.caps())?);
        let arena = gpu
            .scoped("allocating weights", || Arena::new(gpu, plan, placement, IN_FLIGHT_BYTES))
            .await?;
        let buffers = gpu
            .scoped("allocating activations and the KV cache", || {
                Buffers::new(gpu, plan, capacity, &calls)
            })
            .await?;
        let mut pipelines = Pipelines::default();
        let mut dispatches = gpu
            .scoped("making pipelines", || {
                let dispatch = |(index, call): (u64, &Call)| {
                    let pipeline = pipelines.get(gpu, call);
                    let layout = &pipeline.layout;
                    Dispatch {
                        step: call.step,
                        place: call.place.clone(),
                        kernel: call.kernel.name,
                        work: call.work.clone(),
                        pipeline: pipeline.compute.clone(),
                        bind_group: buffers.bind(gpu, &arena, placement, layout, (index, call)),
                    }
                };
                (0..).zip(&calls).map(dispatch).collect::<Vec<_>>()
            })
            .await?;
        let host_tables: Vec<_> =
            plan.host_tables().map(|(table, slot)| (plan.weight(table).clone(), slot)).collect();
        // `calls` ended with it.
        let argmax = dispatches.remove(dispatches.len() - 1);
        Ok(Self {
            gpu: gpu.clone(),
            capacity,
            memory: Memory::of(plan, capacity),
            vocab: plan.vocab(),
            logits: plan.logits,
            logits_width: plan.slot(plan.logits).width.into(),
            ropes: plan.ropes.clone(),
            length: 0,
            arena,
            host_tables,
            loaded: false,
            buffers,
            dispatches,
            argmax,
            pipelines,
            readback: Readback::default(),
        })
    }

    /// Checks that every record was written whole. Nothing runs before.
    pub fn finish(&mut self) -> Result<(), GpuError> {
        self.arena.finish()?;
        self.gpu.check("uploading weights")?;
        self.loaded = true;
        Ok(())
    }

    /// What buffers were allocated for.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// The device it runs on.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Logits of a position.
    pub fn vocab(&self) -> u64 {
        self.logits_width
    }

    /// The kernels of one pass, and how often each is dispatched at most.
    pub fn kernels(&self) -> BTreeMap<&'static str, usize> {
        let mut kernels = BTreeMap::new();
        for dispatch in &self.dispatches {
            *kernels.entry(dispatch.kernel).or_default() += 1;
        }
        kernels
    }

    /// What its kernels rely on.
    pub fn caps(&self) -> Caps {
        self.gpu.caps()
    }

    /// How many pipelines were compiled.
    pub fn pipelines(&self) -> usize {
        self.pipelines.count()
    }

    /// Bytes of the KV cache, and of what short convolutions look back at.
    pub fn cache_bytes(&self) -> u64 {
        self.buffers.cache_bytes()
    }

    /// Whether a session can go back to `past` and read on from there.
    pub fn remembers(&self, past: u32) -> bool {
        self.memory.check(past).is_ok()
    }

    /// Turns positions from now on as a text of `length` tokens needs it; what is cached is void where that differs.
    pub fn set_length(&mut self, length: u32) {
        self.length = length;
    }

    /// Runs the plan over `inputs`, which stand at positions `past..`, and leaves their keys and values in the cache.
    pub async fn forward<'a>(
        &mut self,
        inputs: impl Into<Inputs<'a>>,
        past: u32,
        want: Want,
    ) -> Result<Output, GpuError> {
        let inputs = inputs.into();
        let live = self.begin(inputs, past, want)?;
        match want {
            Want::Nothing => {
                self.run(live, None)?;
                Ok(Output::Nothing)
            }
            Want::Argmax => {
                let result = self.readback.take(&self.gpu, 4);
                self.run(live, Some((self.buffers.token(), &result, 4)))?;
                let token = self.readback.read(&self.gpu, result, 4).await?;
                Ok(token.first().map_or(Output::Nothing, |&token| Output::Token(token)))
            }
            Want::LastLogits | Want::AllLogits => {
                let bytes = 4 * u64::from(live.outputs) * self.logits_width;
                let result = self.readback.take(&self.gpu, bytes);
                self.run(live, Some((self.buffers.slot(self.logits), &result, bytes)))?;
                Ok(Output::Logits(self.readback.read(&self.gpu, result, bytes).await?))
            }
        }
    }

    /// Checks a call and writes what it is given.
    pub(super) fn begin(
        &mut self,
        inputs: Inputs<'_>,
        past: u32,
        want: Want,
    ) -> Result<Live, GpuError> {
        let live = self.live(inputs.tokens, past, want)?;
        inputs.check(self.host_tables.iter().map(|(table, _)| table.columns))?;
        self.memory.read_on(live)?;
        let turns: Vec<_> = self.ropes.iter().map(|rope| turns(rope, self.length, live)).collect();
        self.buffers.write_inputs(&self.gpu.queue, live, inputs.tokens, &turns);
        for ((_, slot), rows) in self.host_tables.iter().zip(inputs.rows) {
            let slot = self.buffers.slot(*slot);
            self.gpu.queue.write_buffer(slot, 0, bytemuck::cast_slice(rows));
        }
        Ok(live)
    }

    /// The lengths of a call, or why it cannot be made.
    fn live(&self, tokens: &[u32], past: u32, want: Want) -> Result<Live, GpuError> {
        if !self.loaded {
            return Err(GpuError::NotLoaded);
        }
        let live = self.capacity.live(tokens, past, want, self.vocab)?;
        Ok(match want {
            // Without outputs the head, which reads more weights than any layer, has nothing to do.
            Want::Nothing => Live { outputs: 0, ..live },
            _ => live,
        })
    }

    /// Submits one pass over the whole plan, and the copy `(from, to, bytes)` of what is wanted from it.
    fn run(
        &self,
        live: Live,
        copy: Option<(&wgpu::Buffer, &wgpu::Buffer, u64)>,
    ) -> Result<(), GpuError> {
        let wants_token = copy.is_some_and(|(from, ..)| from == self.buffers.token());
        self.submit(live, self.dispatches.iter().chain(wants_token.then_some(&self.argmax)), copy)
    }

    /// Encodes and submits some dispatches and a copy.
    pub(super) fn submit<'a>(
        &self,
        live: Live,
        dispatches: impl Iterator<Item = &'a Dispatch>,
        copy: Option<(&wgpu::Buffer, &wgpu::Buffer, u64)>,
    ) -> Result<(), GpuError> {
        const DOING: &str = "running the model";
        let descriptor = wgpu::CommandEncoderDescriptor { label: Some("forward") };
        let mut encoder = self.gpu.device.create_command_encoder(&descriptor);
        {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            for dispatch in dispatches {
                let Some(groups) = dispatch.work.workgroups(live) else { continue };
                let [x, y] = kernels::fold(groups, self.gpu.caps().groups_per_dimension)
                    .map_err(|source| GpuError::Grid { place: dispatch.place.clone(), source })?;
                pass.set_pipeline(&dispatch.pipeline);
                pass.set_bind_group(0, &dispatch.bind_group, &[]);
                pass.dispatch_workgroups(x, y, 1);
            }
        }
        if let Some((from, to, bytes)) = copy {
            encoder.copy_buffer_to_buffer(from, 0, to, 0, bytes);
        }
        self.gpu.queue.submit([encoder.finish()]);
        self.gpu.check(DOING)
    }
}

impl WeightSink for GpuExecutor {
    type Error = GpuError;

    fn write(&mut self, record: &RecordSpec, offset: u64, bytes: &[u8]) -> Result<(), GpuError> {
        let mut on_host = self.host_tables.iter().flat_map(|(table, _)| table.storage.records());
        if on_host.any(|held| held.name == record.name) {
            return Ok(());
        }
        self.arena.write(&self.gpu, record, offset, bytes)
    }

    async fn settle(&mut self) -> Result<(), GpuError> {
        self.arena.settle(&self.gpu).await
    }
}

/// `[tokens, width / 2]` cosines and sines. The angle is rounded to f32 first, as transformers does.
fn turns(rope: &Rope, length: u32, live: Live) -> Vec<f32> {
    let (inv_freq, factor) = (rope.inv_freq(length), rope.attention_factor());
    let positions = live.past..live.past + live.tokens;
    let angles =
        positions.flat_map(|position| inv_freq.iter().map(move |freq| position as f32 * freq));
    angles.flat_map(|angle| [angle.cos() * factor, angle.sin() * factor]).collect()
}
