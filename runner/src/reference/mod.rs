//! The CPU reference: interprets a plan in plain f32 from the packed bytes. The oracle of every kernel, and what runs
//! where there is no adapter.

mod calibrate;
mod conv;
mod experts;
pub mod ops;
mod weights;
mod windows;

use packlight_formats::RecordSpec;

use crate::executor::{
    CallError, Capacity, Inputs, Live, Memory, NO_TOKEN, Output, Want, WeightSink,
};
use crate::packed::{PackedError, PackedWeights};
use crate::plan::{Columns, Factor, Heads, Left, Op, Plan, PlanWeight, Slot, SlotId, WeightId};
use crate::text::sample::argmax;
pub use calibrate::Calibration;
use ops::{AttendParams, ColumnView, HeadView, Turning};
pub use weights::Weights;
pub use windows::Windows;

/// What can go wrong before or during a call.
#[derive(Debug, thiserror::Error)]
pub enum ReferenceError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    Packed(#[from] PackedError),
}

/// A plan, its weights and its KV cache.
#[derive(Debug)]
pub struct Reference<W = PackedWeights> {
    plan: Plan,
    weights: W,
    capacity: Capacity,
    /// Activations by slot; as long as the current call needs.
    slots: Vec<Vec<f32>>,
    caches: Vec<KvCache>,
    /// `[positions, width]` each.
    histories: Vec<Vec<f32>>,
    memory: Memory,
    /// Inverse frequencies by rope.
    ropes: Vec<Vec<f32>>,
}

/// The weights that are kept in memory.
fn held(plan: &Plan) -> impl Iterator<Item = &PlanWeight> {
    let on_host: Vec<usize> = plan.host_tables().map(|(table, _)| table.0).collect();
    let held = plan.weights.iter().enumerate().filter(move |(i, _)| !on_host.contains(i));
    held.map(|(_, weight)| weight)
}

/// `[positions, kv_heads, head_dim]` each.
#[derive(Debug)]
struct KvCache {
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Reference {
    /// A reference without its weights: write them (it is a [`WeightSink`]), then call [`Reference::finish`].
    pub fn new(plan: Plan, capacity: Capacity) -> Self {
        let weights = PackedWeights::of(held(&plan));
        Self::over(plan, weights, capacity)
    }

    /// Every weight has arrived.
    pub fn finish(&self) -> Result<(), ReferenceError> {
        Ok(self.weights.finish()?)
    }
}

impl<W: Weights> Reference<W> {
    /// A reference over weights that are there already.
    pub fn over(plan: Plan, weights: W, capacity: Capacity) -> Self {
        let caches = plan.caches.iter().map(|cache| {
            let size = u64::from(cache.positions(capacity)) * cache.width();
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            KvCache { keys: vec![0.0; size], values: vec![0.0; size] }
        });
        let histories = plan.histories.iter().map(|history| {
            vec![0.0; history.positions(capacity) as usize * history.width as usize]
        });
        Self {
            weights,
            capacity,
            slots: vec![Vec::new(); plan.slots.len()],
            caches: caches.collect(),
            histories: histories.collect(),
            memory: Memory::of(&plan, capacity),
            ropes: plan.ropes.iter().map(|rope| rope.inv_freq(0)).collect(),
            plan,
        }
    }

    /// The plan that it runs.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What the last step that was run has left. Of a cache, keys and then values of the positions up to `end`.
    pub(crate) fn left(&self, left: Left, end: u32) -> Vec<f32> {
        match left {
            Left::Slot(slot) => self.slots[slot.0].clone(),
            Left::Cache(id) => {
                let cache = self.plan.cache(id);
                let width = (cache.kv_heads * cache.head_dim) as usize;
                let KvCache { keys, values } = &self.caches[id.0];
                let live = |array: &[f32]| array[..array.len().min(end as usize * width)].to_vec();
                [live(keys), live(values)].concat()
            }
            Left::History(id) => {
                let ring = &self.histories[id.0];
                let width = self.plan.histories[id.0].width as usize;
                ring[..ring.len().min(end as usize * width)].to_vec()
            }
        }
    }

    /// Whether a session can go back to `past` and read on from there.
    pub fn remembers(&self, past: u32) -> bool {
        self.memory.check(past).is_ok()
    }

    /// Turns positions from now on as a text of `length` tokens needs it; what is cached is void where that differs.
    pub fn set_length(&mut self, length: u32) {
        self.ropes = self.plan.ropes.iter().map(|rope| rope.inv_freq(length)).collect();
    }

    /// Runs the plan over `inputs`, which follow `past` earlier ones.
    pub fn forward<'a>(
        &mut self,
        inputs: impl Into<Inputs<'a>>,
        past: u32,
        want: Want,
    ) -> Result<Output, ReferenceError> {
        let inputs = inputs.into();
        let live = self.begin(inputs, past, want)?;
        for i in 0..self.plan.steps.len() {
            self.step(i, inputs.tokens, live);
        }
        let logits = &self.slots[self.plan.logits.0];
        Ok(match want {
            Want::Nothing => Output::Nothing,
            Want::Argmax => Output::Token(argmax(logits).unwrap_or(NO_TOKEN)),
            Want::LastLogits | Want::AllLogits => Output::Logits(logits.clone()),
        })
    }

    /// Checks a call, takes what it is given and makes room for what it leaves.
    pub(crate) fn begin(
        &mut self,
        inputs: Inputs<'_>,
        past: u32,
        want: Want,
    ) -> Result<Live, ReferenceError> {
        let live = self.capacity.live(inputs.tokens, past, want, self.plan.vocab())?;
        let tables: Vec<_> = self.plan.host_tables().collect();
        inputs.check(tables.iter().map(|(table, _)| self.plan.weight(*table).columns))?;
        self.memory.read_on(live)?;
        for slot in 0..self.slots.len() {
            self.resize(SlotId(slot), live);
        }
        for ((_, slot), rows) in tables.into_iter().zip(inputs.rows) {
            self.slots[slot.0].copy_from_slice(rows);
        }
        Ok(live)
    }

    /// Makes a slot as long as a call needs it.
    fn resize(&mut self, slot: SlotId, live: Live) {
        let Slot { rows, width, .. } = *self.plan.slot(slot);
        let length = rows.count(live.tokens, live.outputs) as usize * width as usize;
        self.slots[slot.0].resize(length, 0.0);
    }

    /// Runs one step of a call.
    pub(crate) fn step(&mut self, step: usize, tokens: &[u32], live: Live) {
        let past = live.past as usize;
        match self.plan.steps[step].op {
            Op::Gather { table, out } => self.gather(table, tokens, out),
            // Given with the tokens.
            Op::HostGather { .. } => {}
            Op::RmsNorm { x, weight, eps, out } => {
                let weight = self.vector(weight);
                let (x, out) = self.pair(x, out);
                ops::rms_norm(x, &weight, eps, out);
            }
            Op::HeadNorm { x, weight, eps } => {
                let (view, weight) = (self.view(x), weight.map(|weight| self.vector(weight)));
                ops::head_norm(&mut self.slots[x.slot.0], view, weight.as_deref(), eps);
            }
            Op::Matmul { x, weight, bias, out } => {
                let bias = bias.map(|bias| self.vector(bias));
                let mut result = std::mem::take(&mut self.slots[out.0]);
                let weight = self.plan.weight(weight);
                ops::matmul(
                    &self.slots[x.0],
                    weight.columns as usize,
                    weight.rows as usize,
                    |n, row| self.weights.row(weight, n, row),
                    bias.as_deref(),
                    &mut result,
                );
                self.slots[out.0] = result;
            }
            Op::Rope { x, rope } => {
                let view = self.view(x);
                let (factor, pairing) = {
                    let rope = &self.plan.ropes[rope.0];
                    (rope.attention_factor(), rope.pairing)
                };
                let turning = Turning { inv_freq: &self.ropes[rope.0], factor, pairing, past };
                ops::rope(&mut self.slots[x.slot.0], view, turning);
            }
            Op::StoreKv { k, v, cache } => {
                let (k_view, v_view) = (self.view(k), self.view(v));
                let cache = &mut self.caches[cache.0];
                ops::store(&self.slots[k.slot.0], k_view, &mut cache.keys, past);
                ops::store(&self.slots[v.slot.0], v_view, &mut cache.values, past);
            }
            Op::Attend { q, cache, scale, softcap, window, out } => {
                let kv_heads = self.plan.cache(cache).kv_heads as usize;
                let params = AttendParams {
                    kv_heads,
                    scale,
                    softcap,
                    window: window.map(|window| window as usize),
                    past,
                };
                let mut result = std::mem::take(&mut self.slots[out.0]);
                let KvCache { keys, values } = &self.caches[cache.0];
                ops::attend(&self.slots[q.slot.0], self.view(q), keys, values, params, &mut result);
                self.slots[out.0] = result;
            }
            Op::Route { logits, normalised, experts, shares } => {
                let (count, chosen) =
                    (self.plan.slot(logits).width as usize, self.plan.slot(experts).width as usize);
                let [logits, experts, shares] = self
                    .slots
                    .get_disjoint_mut([logits.0, experts.0, shares.0])
                    .unwrap_or_else(|_| unreachable!("distinct slots"));
                experts::route(logits, count, chosen, normalised, experts, shares);
            }
            Op::ExpertMatmul { x, experts, weight, bias, out } => {
                let bias = bias.map(|bias| self.vector(bias));
                let mut result = std::mem::take(&mut self.slots[out.0]);
                let (weight, rows) = (self.plan.weight(weight), self.plan.slot(out).width as usize);
                experts::matmul(
                    &self.slots[x.0],
                    &self.slots[experts.0],
                    [rows, weight.columns as usize],
                    |n, row| self.weights.row(weight, n, row),
                    bias.as_deref(),
                    &mut result,
                );
                self.slots[out.0] = result;
            }
            Op::Mix { x, shares, out } => {
                let mut result = std::mem::take(&mut self.slots[out.0]);
                let width = self.plan.slot(out).width as usize;
                experts::mix(&self.slots[x.0], &self.slots[shares.0], width, &mut result);
                self.slots[out.0] = result;
            }
            Op::StoreProduct { x, by, history } => {
                let width = self.plan.histories[history.0].width as usize;
                let mut ring = std::mem::take(&mut self.histories[history.0]);
                conv::store(self.columns(x), self.columns(by), width, past, &mut ring);
                self.histories[history.0] = ring;
            }
            Op::Convolve { history, kernel, bias, gate, out } => {
                let (kernel, bias) = (self.vector(kernel), bias.map(|bias| self.vector(bias)));
                let mut result = std::mem::take(&mut self.slots[out.0]);
                let ring = &self.histories[history.0];
                let width = self.plan.slot(out).width as usize;
                let kernels = conv::Kernels { values: &kernel, bias: bias.as_deref(), width };
                conv::convolve(ring, kernels, self.columns(gate), past, &mut result);
                self.slots[out.0] = result;
            }
            Op::Gate { gate, up, activation, out } => {
                let width = self.plan.slot(out).width as usize;
                let mut result = std::mem::take(&mut self.slots[out.0]);
                ops::gate(self.columns(gate), self.columns(up), activation, width, &mut result);
                self.slots[out.0] = result;
            }
            Op::Add { x, y, scale } => {
                let (y, x) = self.pair(y, x);
                ops::add(x, y, scale.unwrap_or(1.0));
            }
            Op::Scale { x, by } => {
                let factor = match by {
                    Factor::Constant(factor) => factor,
                    Factor::Weight(weight) => self.vector(weight).first().copied().unwrap_or(1.0),
                };
                ops::scale(&mut self.slots[x.0], factor);
            }
            Op::Softcap { x, cap } => ops::softcap(&mut self.slots[x.0], cap),
            Op::Copy { x, out } => {
                let (x, out) = self.pair(x, out);
                out.copy_from_slice(&x[x.len() - out.len()..]);
            }
        }
    }

    fn gather(&mut self, table: WeightId, tokens: &[u32], out: SlotId) {
        let table = self.plan.weight(table);
        let rows = self.slots[out.0].chunks_mut(table.columns as usize);
        for (&token, row) in tokens.iter().zip(rows) {
            self.weights.row(table, token as usize, row);
        }
    }

    fn vector(&self, weight: WeightId) -> Vec<f32> {
        self.weights.vector(self.plan.weight(weight))
    }

    fn columns(&self, x: Columns) -> ColumnView<'_> {
        ColumnView {
            x: &self.slots[x.slot.0],
            width: self.plan.slot(x.slot).width as usize,
            offset: x.offset as usize,
        }
    }

    fn view(&self, x: Heads) -> HeadView {
        HeadView {
            width: self.plan.slot(x.slot).width as usize,
            offset: x.offset as usize,
            heads: x.heads as usize,
            head_dim: x.head_dim as usize,
        }
    }

    /// One slot to read and another to write.
    fn pair(&mut self, read: SlotId, write: SlotId) -> (&[f32], &mut [f32]) {
        debug_assert_ne!(read, write, "an operation never reads the slot it writes");
        let [read, write] = self
            .slots
            .get_disjoint_mut([read.0, write.0])
            .unwrap_or_else(|_| unreachable!("distinct slots"));
        (read, write)
    }
}

impl WeightSink for Reference {
    type Error = ReferenceError;

    fn write(
        &mut self,
        record: &RecordSpec,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), ReferenceError> {
        if self.plan.is_on_host(&record.name) {
            return Ok(());
        }
        Ok(self.weights.write(record, offset, bytes)?)
    }
}
