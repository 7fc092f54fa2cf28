//! Everything on the device but the weights, allocated once for the largest call.

use super::arena::Arena;
use super::device::Gpu;
use crate::executor::{Capacity, Live};
use crate::gpu::place::{Placed, Placement};
use crate::kernels::{Call, Resource};
use crate::plan::{CacheId, HistoryId, Plan, Rows, SlotId};

/// Calls that can be given to the device at once.
pub(super) const AHEAD: u32 = 32;

/// What prelude.wgsl has for `Live`: the lengths of a call, and where among the tokens and angles it begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    pub(super) live: Live,
    pub(super) first: u32,
}

/// Activations, caches, inputs and results.
#[derive(Debug)]
pub(super) struct Buffers {
    /// The uniform `Live` of prelude.wgsl, for [`AHEAD`] calls at multiples of `live_stride`.
    live: wgpu::Buffer,
    live_stride: u32,
    /// The uniform `args` of every call, each at a multiple of `args_stride`.
    args: wgpu::Buffer,
    args_stride: u64,
    /// `[chunk + AHEAD]` ids.
    tokens: wgpu::Buffer,
    scratch: wgpu::Buffer,
    /// `[chunk, columns]` f16 for the widest.
    halves: wgpu::Buffer,
    /// `[chunk]`
    factors: wgpu::Buffer,
    nothing: wgpu::Buffer,
    /// `[chunk, width]` each, or `[outputs, width]`.
    slots: Vec<wgpu::Buffer>,
    /// `[positions, kv_heads, head_dim]` each, which is where kernels read the number of positions from.
    keys: Vec<wgpu::Buffer>,
    values: Vec<wgpu::Buffer>,
    /// `[positions, width]` each, the same.
    histories: Vec<wgpu::Buffer>,
    /// `[chunk + AHEAD, width / 2]` pairs each.
    turns: Vec<wgpu::Buffer>,
}

impl Buffers {
    /// Allocates them, and writes the args of `calls`; call it inside of [`Gpu::scoped`].
    pub(super) fn new(gpu: &Gpu, plan: &Plan, capacity: Capacity, calls: &[Call]) -> Self {
        let create = |label: &str, bytes: u64, usage| {
            gpu.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some(label),
                size: bytes,
                usage: usage | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            })
        };
        let live_stride = gpu.caps().offset_alignment.max(16);
        let (uniform, storage) = (wgpu::BufferUsages::UNIFORM, wgpu::BufferUsages::STORAGE);
        let Capacity { chunk, outputs, .. } = capacity;
        let rows = |rows: Rows| u64::from(rows.count(chunk, outputs));
        let chunk = u64::from(chunk);
        let floats = |label: &str, rows: u64, width: u64| {
            // Some kernels read in fours.
            create(
                label,
                (4 * rows * width).next_multiple_of(16),
                storage | wgpu::BufferUsages::COPY_SRC,
            )
        };
        let caches = |label: &str| {
            let caches = plan.caches.iter();
            caches
                .map(|cache| floats(label, cache.positions(capacity).into(), cache.width()))
                .collect()
        };
        let ahead = chunk + u64::from(AHEAD);
        let scratch = calls.iter().flat_map(|call| &call.buffers).map(|resource| match resource {
            Resource::Scratch { floats } => *floats,
            _ => 0,
        });
        let scratch = scratch.max().unwrap_or(0).max(4);
        let halves = calls.iter().flat_map(|call| &call.buffers).map(|resource| match resource {
            Resource::Halves { columns } => 2 * u64::from(*columns) * chunk,
            _ => 0,
        });
        let halves = halves.max().unwrap_or(0).max(16);
        let longest = calls.iter().map(|call| 4 * call.args.len() as u64).max().unwrap_or(4);
        let args_stride = longest.next_multiple_of(u64::from(gpu.caps().offset_alignment));
        let buffers = Self {
            live: create("live", u64::from(live_stride) * u64::from(AHEAD), uniform),
            live_stride,
            args: create("args", args_stride * calls.len() as u64, uniform),
            args_stride,
            tokens: create("tokens", 4 * ahead, storage | wgpu::BufferUsages::COPY_SRC),
            scratch: create("scratch", 4 * u64::from(scratch), storage),
            halves: create("halves", halves, storage),
            factors: create("factors", 4 * chunk, storage),
            nothing: create("nothing", 16, storage),
            slots: (plan.slots.iter())
                .map(|slot| floats(slot.name, rows(slot.rows), slot.width.into()))
                .collect(),
            keys: caches("keys"),
            values: caches("values"),
            histories: (plan.histories.iter())
                .map(|h| floats("history", h.positions(capacity).into(), h.width.into()))
                .collect(),
            turns: (plan.ropes.iter())
                .map(|rope| floats("turns", ahead, rope.width.into()))
                .collect(),
        };
        for (i, call) in (0..).zip(calls) {
            let bytes = bytemuck::cast_slice(&call.args);
            gpu.queue.write_buffer(&buffers.args, i * args_stride, bytes);
        }
        buffers
    }

    /// The bind group of call number `index`.
    pub(super) fn bind(
        &self,
        gpu: &Gpu,
        arena: &Arena,
        placement: &Placement,
        layout: &wgpu::BindGroupLayout,
        (index, call): (u64, &Call),
    ) -> wgpu::BindGroup {
        let args = wgpu::BufferBinding {
            buffer: &self.args,
            offset: index * self.args_stride,
            size: wgpu::BufferSize::new(4 * call.args.len() as u64),
        };
        let resource = |resource: &Resource| match *resource {
            Resource::Slot(slot) => self.slots[slot.0].as_entire_buffer_binding(),
            Resource::Codes(piece) => arena.binding(piece.codes),
            Resource::Scales(piece) => match piece.scales {
                Some(scales) => arena.binding(scales),
                None => self.nothing.as_entire_buffer_binding(),
            },
            Resource::Vector(weight) => match &placement.weights[weight.0] {
                Placed::Vector(region) => arena.binding(*region),
                // Lowering makes this resource of vectors only.
                Placed::Matrix { .. } | Placed::Host => self.nothing.as_entire_buffer_binding(),
            },
            Resource::Keys(cache) => self.keys[cache.0].as_entire_buffer_binding(),
            Resource::Values(cache) => self.values[cache.0].as_entire_buffer_binding(),
            Resource::History(history) => self.histories[history.0].as_entire_buffer_binding(),
            Resource::Turns(rope) => self.turns[rope.0].as_entire_buffer_binding(),
            Resource::Tokens => self.tokens.as_entire_buffer_binding(),
            Resource::Halves { .. } => self.halves.as_entire_buffer_binding(),
            Resource::Factors => self.factors.as_entire_buffer_binding(),
            Resource::Scratch { .. } => self.scratch.as_entire_buffer_binding(),
            Resource::Nothing => self.nothing.as_entire_buffer_binding(),
        };
        let live =
            wgpu::BufferBinding { buffer: &self.live, offset: 0, size: wgpu::BufferSize::new(16) };
        let uniforms = [live, args];
        let bindings = uniforms.into_iter().chain(call.buffers.iter().map(resource));
        let entries: Vec<_> = (0..)
            .zip(bindings)
            .map(|(binding, buffer)| wgpu::BindGroupEntry {
                binding,
                resource: wgpu::BindingResource::Buffer(buffer),
            })
            .collect();
        let label = Some(call.kernel.name);
        gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label,
            layout,
            entries: &entries,
        })
    }

    /// Writes what changes from call to call, for calls that follow each other. `turns` has the angles of each rope.
    pub(super) fn write_inputs(
        &self,
        queue: &wgpu::Queue,
        calls: &[Begun],
        tokens: &[u32],
        turns: &[Vec<f32>],
    ) {
        let stride = self.live_stride as usize / 4;
        let mut lengths = vec![0; stride * calls.len()];
        for (lengths, Begun { live, first }) in lengths.chunks_mut(stride).zip(calls) {
            lengths[..4].copy_from_slice(&[live.tokens, live.past, live.outputs, *first]);
        }
        queue.write_buffer(&self.live, 0, bytemuck::cast_slice(&lengths));
        queue.write_buffer(&self.tokens, 0, bytemuck::cast_slice(tokens));
        for (buffer, turns) in self.turns.iter().zip(turns) {
            queue.write_buffer(buffer, 0, bytemuck::cast_slice(turns));
        }
    }

    pub(super) fn cache_bytes(&self) -> u64 {
        let buffers = self.keys.iter().chain(&self.values).chain(&self.histories);
        buffers.map(wgpu::Buffer::size).sum()
    }

    pub(super) fn slot(&self, slot: SlotId) -> &wgpu::Buffer {
        &self.slots[slot.0]
    }

    /// What a short convolution looks back at.
    pub(super) fn history(&self, history: HistoryId) -> &wgpu::Buffer {
        &self.histories[history.0]
    }

    /// Keys and values, `[positions, kv_heads, head_dim]` each.
    pub(super) fn cache(&self, cache: CacheId) -> [&wgpu::Buffer; 2] {
        [&self.keys[cache.0], &self.values[cache.0]]
    }

    pub(super) fn tokens(&self) -> &wgpu::Buffer {
        &self.tokens
    }

    /// The dynamic offset of a call's `Live`, by its number among those that are begun.
    pub(super) fn live_offset(&self, call: u32) -> u32 {
        call * self.live_stride
    }
}
