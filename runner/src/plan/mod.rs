//! The plan: a printable list of steps with symbolic dimensions that the CPU reference and the GPU both run.
//!
//! A plan does not depend on the device. Activations live in slots, f32 matrices `[rows, width]` whose rows are the
//! tokens of the current call (or, in the head, those whose logits are wanted); `T` below is that count.

mod lower;
mod print;
mod uses;

use packlight_formats::model::Activation;
use packlight_formats::quant::Storage;
use packlight_formats::rope::Rope;

pub use uses::Left;

/// Index into [`Plan::slots`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlotId(pub usize);
/// Index into [`Plan::weights`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightId(pub usize);
/// Index into [`Plan::caches`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CacheId(pub usize);
/// Index into [`Plan::ropes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RopeIndex(pub usize);

/// Everything that runs for one call, in order.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Activation buffers.
    pub slots: Vec<Slot>,
    /// What the steps read from the bundle.
    pub weights: Vec<PlanWeight>,
    /// One per attention layer that stores keys and values.
    pub caches: Vec<Cache>,
    /// Rotary tables.
    pub ropes: Vec<Rope>,
    /// The list.
    pub steps: Vec<Step>,
    /// Where the logits are after the last step: `[outputs, vocab]`.
    pub logits: SlotId,
}

/// An activation buffer, `[T, width]` f32.
#[derive(Clone, Debug)]
pub struct Slot {
    pub name: &'static str,
    pub width: u32,
    /// Whether its rows are all tokens of the call or only those whose logits are wanted.
    pub rows: Rows,
}

/// A symbolic row count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// The tokens of the call.
    Tokens,
    /// The last tokens of the call, those whose logits are wanted: one, or all.
    Outputs,
}

/// A weight `[rows, columns]` (a vector has `columns` 1) and the records that hold it.
#[derive(Clone, Debug)]
pub struct PlanWeight {
    pub name: String,
    pub rows: u32,
    pub columns: u32,
    pub storage: Storage,
}

/// Keys and values of one layer: two arrays `[positions, kv_heads, head_dim]`.
#[derive(Clone, Debug)]
pub struct Cache {
    pub kv_heads: u32,
    pub head_dim: u32,
}

/// `heads` runs of `head_dim` values, starting at column `offset` of each row of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    pub slot: SlotId,
    pub offset: u32,
    pub heads: u32,
    pub head_dim: u32,
}

/// Columns of a slot from `offset` on, as many as the operation takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns {
    pub slot: SlotId,
    pub offset: u32,
}

/// What values are multiplied by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Factor {
    /// The same in every model of the architecture and shape.
    Constant(f32),
    /// A weight `[1]`.
    Weight(WeightId),
}

/// One operation and where in the model it belongs (`layer 3 attention`).
#[derive(Clone, Debug)]
pub struct Step {
    pub place: String,
    pub op: Op,
}

/// The operations. `x`, `out`, ... are slots `[T, width]`; no operation reads a slot that it writes, unless it works in
/// place and says so.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// `out[t, :] = table[token[t], :]`; `table` is `[vocab, width]`.
    Gather { table: WeightId, out: SlotId },
    /// The same from a table that stays in host memory on every device: too large for what a token needs of it.
    HostGather { table: WeightId, out: SlotId },
    /// `out[t, :] = x[t, :] / sqrt(mean(x[t, :]^2) + eps) * weight`; `weight` is `[width]`.
    RmsNorm { x: SlotId, weight: WeightId, eps: f32, out: SlotId },
    /// The same in place over each head; `weight` is `[head_dim]`, or 1.
    HeadNorm { x: Heads, weight: Option<WeightId>, eps: f32 },
    /// `out[t, n] = sum_k x[t, k] * weight[n, k] + bias[n]`; `weight` is `[N, K]`, `bias` is `[N]`.
    Matmul { x: SlotId, weight: WeightId, bias: Option<WeightId>, out: SlotId },
    /// Turns the pairs `(i, i + width/2)` of each head by `position * inv_freq[i]`, in place.
    Rope { x: Heads, rope: RopeIndex },
    /// Writes the keys and values of this call's tokens at their positions.
    StoreKv { k: Heads, v: Heads, cache: CacheId },
    /// Softmax attention of each query over the cached positions it may see; `out` is `[T, heads * head_dim]`.
    Attend {
        q: Heads,
        cache: CacheId,
        scale: f32,
        softcap: Option<f32>,
        window: Option<u32>,
        out: SlotId,
    },
    /// `out[t, i] = act(gate[t, i]) * up[t, i]`.
    Gate { gate: Columns, up: Columns, activation: Activation, out: SlotId },
    /// `x += scale * y`, with 1 for no scale.
    Add { x: SlotId, y: SlotId, scale: Option<f32> },
    /// `x *= by`.
    Scale { x: SlotId, by: Factor },
    /// `x = cap * tanh(x / cap)`.
    Softcap { x: SlotId, cap: f32 },
    /// `out = x`; where `out` has a row for each output only, the last ones of `x`.
    Copy { x: SlotId, out: SlotId },
}

impl Plan {
    /// How many token ids it knows: the rows of the tables that they are looked up in.
    pub fn vocab(&self) -> u32 {
        let tables = self.steps.iter().filter_map(|step| match step.op {
            Op::Gather { table, .. } | Op::HostGather { table, .. } => {
                Some(self.weight(table).rows)
            }
            _ => None,
        });
        tables.min().unwrap_or(0)
    }

    /// The row count of the slot an operation writes.
    pub fn slot(&self, id: SlotId) -> &Slot {
        &self.slots[id.0]
    }

    pub fn weight(&self, id: WeightId) -> &PlanWeight {
        &self.weights[id.0]
    }

    /// The tables that stay on the host, and where their rows go.
    pub fn host_tables(&self) -> impl Iterator<Item = (WeightId, SlotId)> {
        self.steps.iter().filter_map(|step| match step.op {
            Op::HostGather { table, out } => Some((table, out)),
            _ => None,
        })
    }

    /// Texts longer than this need other rotary tables, and the keys of their beginning with them.
    pub fn turning_point(&self) -> Option<u32> {
        self.ropes.iter().filter_map(Rope::turning_point).min()
    }

    pub fn cache(&self, id: CacheId) -> &Cache {
        &self.caches[id.0]
    }
}
