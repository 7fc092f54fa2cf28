//! Runs a plan that is loaded: dispatches follow the live lengths of each call.

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};

use packlight_formats::rope::Rope;

use super::buffers::{AHEAD, Begun, Buffers};
use super::caps::Caps;
use super::device::Gpu;
use super::error::GpuError;
use super::readback::Readback;
use crate::executor::{Capacity, Inputs, Live, Memory, Output, Want};
use crate::kernels::{self, Work};
use crate::plan::{PlanWeight, SlotId};

/// A plan on a device, with its weights, as [`GpuLoader`](super::GpuLoader) makes it.
#[derive(Debug)]
pub struct GpuExecutor {
    pub(super) gpu: Gpu,
    pub(super) capacity: Capacity,
    pub(super) memory: Memory,
    pub(super) vocab: u32,
    pub(super) logits: SlotId,
    pub(super) logits_width: u64,
    pub(super) ropes: Vec<Rope>,
    /// The text's length that positions are turned for.
    pub(super) length: u32,
    /// Tables that are not on the device, and the slots that their rows go to.
    pub(super) host_tables: Vec<(PlanWeight, SlotId)>,
    pub(super) buffers: Buffers,
    pub(super) dispatches: Vec<Dispatch>,
    pub(super) argmax: Vec<Dispatch>,
    /// How many pipelines were compiled.
    pub(super) pipelines: usize,
    pub(super) readback: Readback,
}

/// A call, ready to be encoded.
#[derive(Debug)]
pub(super) struct Dispatch {
    pub(super) steps: Range<usize>,
    pub(super) yields_to: Option<RangeInclusive<u32>>,
    pub(super) place: String,
    pub(super) kernel: &'static str,
    pub(super) work: Work,
    pub(super) pipeline: wgpu::ComputePipeline,
    pub(super) bind_group: wgpu::BindGroup,
}

/// Bytes to be copied after some dispatches.
#[derive(Clone, Copy)]
pub(super) struct Copied<'a> {
    pub(super) from: &'a wgpu::Buffer,
    pub(super) offset: u64,
    pub(super) to: &'a wgpu::Buffer,
    pub(super) bytes: u64,
}

impl GpuExecutor {
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
        self.pipelines
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
        if want == Want::Argmax {
            let tokens = self.greedy(inputs, past, 1).await?;
            return Ok(tokens.first().map_or(Output::Nothing, |&token| Output::Token(token)));
        }
        let begun = self.begin(inputs, past, want, 1)?[0];
        if want == Want::Nothing {
            self.submit([((0, begun), self.pass(begun.live))], None)?;
            return Ok(Output::Nothing);
        }
        let bytes = 4 * u64::from(begun.live.outputs) * self.logits_width;
        let result = self.readback.take(&self.gpu, bytes);
        let from = self.buffers.slot(self.logits);
        let copy = Copied { from, offset: 0, to: &result, bytes };
        self.submit([((0, begun), self.pass(begun.live))], Some(copy))?;
        Ok(Output::Logits(self.readback.read(&self.gpu, result, bytes).await?))
    }

    /// How many tokens [`Self::greedy`] can be asked for.
    pub fn ahead(&self) -> u32 {
        // What a token looks up on the host must be known there. And rings can only go back so far, to the one that ends
        // an answer.
        let reach = self.memory.reach().unwrap_or(AHEAD);
        if self.host_tables.is_empty() { AHEAD.min(reach).max(1) } else { 1 }
    }

    /// The likeliest token after `inputs`, the likeliest after that, and so on, `count` of them: the device goes on by
    /// itself. All but the last are then in the cache too.
    pub async fn greedy<'a>(
        &mut self,
        inputs: impl Into<Inputs<'a>>,
        past: u32,
        count: u32,
    ) -> Result<Vec<u32>, GpuError> {
        let inputs = inputs.into();
        let calls = self.begin(inputs, past, Want::Argmax, count.clamp(1, self.ahead()))?;
        let bytes = 4 * calls.len() as u64;
        let result = self.readback.take(&self.gpu, bytes);
        let offset = 4 * inputs.tokens.len() as u64;
        let copy = Copied { from: self.buffers.tokens(), offset, to: &result, bytes };
        // The device begins with the first call while the next is encoded. Between submissions it pauses, so each has twice
        // as many calls as the one before.
        let mut numbered = (0..).zip(calls).peekable();
        for most in std::iter::successors(Some(1), |most| Some(2 * most)) {
            let together = numbered.by_ref().take(most).map(|(number, begun)| {
                ((number, begun), self.pass(begun.live).chain(&self.argmax))
            });
            let together: Vec<_> = together.collect();
            let is_last = numbered.peek().is_none();
            self.submit(together, is_last.then_some(copy))?;
            if is_last {
                break;
            }
        }
        self.readback.read(&self.gpu, result, bytes).await
    }

    /// Checks a call and those that follow from it, `count` in all, and writes what they are given.
    pub(super) fn begin(
        &mut self,
        inputs: Inputs<'_>,
        past: u32,
        want: Want,
        count: u32,
    ) -> Result<Vec<Begun>, GpuError> {
        let live = self.live(inputs.tokens, past, want)?;
        inputs.check(self.host_tables.iter().map(|(table, _)| table.columns))?;
        let mut calls = vec![Begun { live, first: 0 }];
        for i in 1..count {
            // Whatever the token will be, it is one that the vocabulary has.
            let live = self.live(&[0], past + live.tokens + i - 1, want)?;
            calls.push(Begun { live, first: calls[0].live.tokens + i - 1 });
        }
        for begun in &calls {
            self.memory.read_on(begun.live)?;
        }
        let positions = past..past + live.tokens + count - 1;
        let turns: Vec<_> =
            self.ropes.iter().map(|rope| turns(rope, self.length, positions.clone())).collect();
        self.buffers.write_inputs(&self.gpu.queue, &calls, inputs.tokens, &turns);
        for ((_, slot), rows) in self.host_tables.iter().zip(inputs.rows) {
            let slot = self.buffers.slot(*slot);
            self.gpu.queue.write_buffer(slot, 0, bytemuck::cast_slice(rows));
        }
        Ok(calls)
    }

    /// The lengths of a call, or why it cannot be made.
    fn live(&self, tokens: &[u32], past: u32, want: Want) -> Result<Live, GpuError> {
        let live = self.capacity.live(tokens, past, want, self.vocab)?;
        Ok(match want {
            // Without outputs the head, which reads more weights than any layer, has nothing to do.
            Want::Nothing => Live { outputs: 0, ..live },
            _ => live,
        })
    }

    /// What a call with these lengths runs: fused dispatches where there are some.
    pub(super) fn pass(&self, live: Live) -> impl Iterator<Item = &Dispatch> {
        self.dispatches.iter().filter(move |dispatch| !dispatch.yields(live))
    }

    /// Encodes and submits some dispatches of begun calls, by their numbers, and a copy.
    pub(super) fn submit<'a>(
        &self,
        calls: impl IntoIterator<Item = ((u32, Begun), impl Iterator<Item = &'a Dispatch>)>,
        copy: Option<Copied<'_>>,
    ) -> Result<(), GpuError> {
        const DOING: &str = "running the model";
        let descriptor = wgpu::CommandEncoderDescriptor { label: Some("forward") };
        let mut encoder = self.gpu.device.create_command_encoder(&descriptor);
        {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            for ((number, begun), dispatches) in calls {
                let offsets = [self.buffers.live_offset(number)];
                for dispatch in dispatches {
                    dispatch.encode(&mut pass, &self.gpu.caps(), begun.live, &offsets)?;
                }
            }
        }
        if let Some(Copied { from, offset, to, bytes }) = copy {
            encoder.copy_buffer_to_buffer(from, offset, to, 0, bytes);
        }
        self.gpu.queue.submit([encoder.finish()]);
        self.gpu.check(DOING)
    }
}

impl Dispatch {
    /// Whether a fused dispatch does its work in a call with these lengths.
    fn yields(&self, live: Live) -> bool {
        let rows = self.work.rows.count(live.tokens, live.outputs);
        self.yields_to.as_ref().is_some_and(|fused| fused.contains(&rows))
    }

    /// Whether it has anything to do.
    pub(super) fn encode(
        &self,
        pass: &mut wgpu::ComputePass<'_>,
        caps: &Caps,
        live: Live,
        offsets: &[u32],
    ) -> Result<bool, GpuError> {
        let Some(groups) = self.work.workgroups(live) else { return Ok(false) };
        let [x, y] = kernels::fold(groups, caps.groups_per_dimension)
            .map_err(|source| GpuError::Grid { place: self.place.clone(), source })?;
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, &self.bind_group, offsets);
        pass.dispatch_workgroups(x, y, 1);
        Ok(true)
    }
}

/// `[positions, width / 2]` cosines and sines. The angle is rounded to f32 first, as transformers does.
fn turns(rope: &Rope, length: u32, positions: Range<u32>) -> Vec<f32> {
    let (inv_freq, factor) = (rope.inv_freq(length), rope.attention_factor());
    let angles =
        positions.flat_map(|position| inv_freq.iter().map(move |freq| position as f32 * freq));
    angles.flat_map(|angle| [angle.cos() * factor, angle.sin() * factor]).collect()
}
