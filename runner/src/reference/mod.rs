//! The CPU reference: interprets a plan in plain f32 from the packed bytes. The oracle of every kernel, and what runs
//! where there is no adapter.

mod calibrate;
pub mod ops;
mod weights;
mod windows;

use packlight_formats::RecordSpec;

use crate::executor::{CallError, Capacity, Live, Output, Want, WeightSink};
use crate::packed::{PackedError, PackedWeights};
use crate::plan::{Columns, Factor, Heads, Left, Op, Plan, Rows, SlotId, WeightId};
pub use calibrate::Calibration;
use ops::{AttendParams, ColumnView, HeadView};
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
    /// Inverse frequencies by rope.
    ropes: Vec<Vec<f32>>,
}

/// `[context, kv_heads, head_dim]` each.
#[derive(Debug)]
struct KvCache {
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Reference {
    /// A reference without its weights: write them (it is a [`WeightSink`]), then call [`Reference::finish`].
    pub fn new(plan: Plan, capacity: Capacity) -> Self {
        let weights = PackedWeights::of(&plan.weights);
        Self::over(plan, weights, capacity)
    }

    /// Every weight has arrived.
    pub fn finish(&self) -> Result<(), ReferenceError> {
        Ok(self.weights.finish()?)
    }

    /// The weights alone.
    pub fn into_weights(self) -> PackedWeights {
        self.weights
    }
}

impl<W: Weights> Reference<W> {
    /// A reference over weights that are there already.
    pub fn over(plan: Plan, weights: W, capacity: Capacity) -> Self {
        let caches = plan.caches.iter().map(|cache| {
            let size = capacity.context as usize * (cache.kv_heads * cache.head_dim) as usize;
            KvCache { keys: vec![0.0; size], values: vec![0.0; size] }
        });
        Self {
            weights,
            capacity,
            slots: vec![Vec::new(); plan.slots.len()],
            caches: caches.collect(),
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
        }
    }

    /// Turns positions from now on as a text of `length` tokens needs it; what is cached is void where that differs.
    pub fn set_length(&mut self, length: u32) {
        self.ropes = self.plan.ropes.iter().map(|rope| rope.inv_freq(length)).collect();
    }

    /// Runs the plan over `tokens`, which follow `past` earlier ones.
    pub fn forward(
        &mut self,
        tokens: &[u32],
        past: u32,
        want: Want,
    ) -> Result<Output, ReferenceError> {
        let live = self.begin(tokens, past, want)?;
        for i in 0..self.plan.steps.len() {
            self.step(i, tokens, live);
        }
        let logits = &self.slots[self.plan.logits.0];
        Ok(match want {
            Want::Nothing => Output::Nothing,
            Want::Argmax => Output::Token(u32::try_from(ops::argmax(logits)).unwrap_or(u32::MAX)),
            Want::LastLogits | Want::AllLogits => Output::Logits(logits.clone()),
        })
    }

    /// Checks a call and makes room for what it leaves.
    pub(crate) fn begin(
        &mut self,
        tokens: &[u32],
        past: u32,
        want: Want,
    ) -> Result<Live, ReferenceError> {
        let live = self.capacity.live(tokens, past, want, self.plan.vocab())?;
        for (slot, values) in self.plan.slots.iter().zip(&mut self.slots) {
            let rows = match slot.rows {
                Rows::Tokens => live.tokens,
                Rows::Outputs => live.outputs,
            };
            values.resize((rows * slot.width) as usize, 0.0);
        }
        Ok(live)
    }

    /// Runs one step of a call.
    pub(crate) fn step(&mut self, step: usize, tokens: &[u32], live: Live) {
        let past = live.past as usize;
        match self.plan.steps[step].op {
            Op::Gather { table, out } | Op::HostGather { table, out } => {
                let table = self.plan.weight(table);
                for (&token, row) in
                    tokens.iter().zip(self.slots[out.0].chunks_mut(table.columns as usize))
                {
                    self.weights.row(table, token as usize, row);
                }
            }
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
                let (view, factor) = (self.view(x), self.plan.ropes[rope.0].attention_factor());
                ops::rope(&mut self.slots[x.slot.0], view, &self.ropes[rope.0], factor, past);
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
        Ok(self.weights.write(record, offset, bytes)?)
    }
}
