//! The plan: a printable list of steps with symbolic dimensions that the CPU reference and the GPU both run.
//!
//! A plan does not depend on the device. Activations live in slots, f32 matrices `[rows, width]` whose rows are the
//! tokens of the current call (or, in the head, those whose logits are wanted); `T` below is that count.

mod lower;
mod print;
mod uses;

use packlight_formats::RecordSpec;
use packlight_formats::model::{Activation, cache_positions};
use packlight_formats::quant::Storage;
use packlight_formats::rope::Rope;

use crate::executor::Capacity;
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
/// Index into [`Plan::histories`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HistoryId(pub usize);
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
    /// One per short convolution.
    pub histories: Vec<History>,
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
    /// So many for each token of the call, one after the other: a token's experts.
    PerToken(u32),
}

impl Rows {
    /// The count where a call has so many tokens and outputs.
    pub fn count(self, tokens: u32, outputs: u32) -> u32 {
        match self {
            Self::Tokens => tokens,
            Self::Outputs => outputs,
            Self::PerToken(count) => tokens * count,
        }
    }
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
    /// Where nothing looks back further, the arrays are rings.
    pub window: Option<u32>,
}

impl Cache {
    /// Rows of its arrays; position `p` is in row `p % positions`.
    pub fn positions(&self, capacity: Capacity) -> u32 {
        cache_positions(self.window, capacity.context, capacity.chunk)
    }

    /// Values of a position in either array.
    pub fn width(&self) -> u64 {
        u64::from(self.kv_heads) * u64::from(self.head_dim)
    }
}

/// What a short convolution looks back at: `[positions, width]`, a ring.
#[derive(Clone, Copy, Debug)]
pub struct History {
    pub width: u32,
    /// Positions that it sees, the current one included.
    pub window: u32,
}

impl History {
    /// Rows of the ring; position `p` is in row `p % positions`.
    pub fn positions(&self, capacity: Capacity) -> u32 {
        cache_positions(Some(self.window), capacity.context, capacity.chunk)
    }
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
    /// Turns the pairs of each head by `position * inv_freq[i]`, in place.
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
    /// The `K` most probable experts of each row of `logits` `[T, experts]`, the most probable first, and their shares:
    /// probabilities of a softmax, which add up to 1 where they are `normalised`. Both are `[T, K]`; experts are numbers
    /// in f32.
    Route { logits: SlotId, normalised: bool, experts: SlotId, shares: SlotId },
    /// `out[r, n] = sum_k x[r, k] * weight[e, n, k] + bias[e, n]`, where row `r` is number `r % K` of token `r / K` and `e`
    /// its expert. Where `x` has a row for each token only, its experts share that. `weight` is `[experts, N, K]`.
    ExpertMatmul {
        x: SlotId,
        experts: SlotId,
        weight: WeightId,
        bias: Option<WeightId>,
        out: SlotId,
    },
    /// `out[t, :] = sum_k shares[t, k] * x[t * K + k, :]`.
    Mix { x: SlotId, shares: SlotId, out: SlotId },
    /// Writes `x * by` of this call's tokens at their positions.
    StoreProduct { x: Columns, by: Columns, history: HistoryId },
    /// `out[t, c] = gate[t, c] * (bias[c] + sum_j kernel[c, j] * history[position - window + 1 + j, c])`; `kernel` is
    /// `[width * window]`, and what comes before the first position is zero.
    Convolve {
        history: HistoryId,
        kernel: WeightId,
        bias: Option<WeightId>,
        gate: Columns,
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

    /// Stored bytes of the matrices that a token meets; of experts, those that it is sent to.
    pub fn bytes_per_token(&self) -> u64 {
        let stored = |weight: WeightId| -> u64 {
            self.weight(weight).storage.records().map(RecordSpec::stored_bytes).sum()
        };
        let matrices = self.steps.iter().map(|step| match step.op {
            Op::Matmul { weight, .. } => stored(weight),
            Op::ExpertMatmul { experts, weight, out, .. } => {
                let met = u64::from(self.slot(experts).width) * u64::from(self.slot(out).width);
                stored(weight) * met / u64::from(self.weight(weight).rows)
            }
            _ => 0,
        });
        matrices.sum()
    }

    /// Whether a record belongs to a table that stays on the host.
    pub fn is_on_host(&self, record: &str) -> bool {
        let mut records = self.host_tables().flat_map(|(id, _)| self.weight(id).storage.records());
        records.any(|held| held.name == record)
    }

    /// Texts longer than this need other rotary tables, and the keys of their beginning with them.
    pub fn turning_point(&self) -> Option<u32> {
        self.ropes.iter().filter_map(Rope::turning_point).min()
    }

    /// By how many positions a session can go back and read on from there: `None` for all of them, which rings forget.
    pub fn reach(&self, capacity: Capacity) -> Option<u32> {
        let rings = self.caches.iter().filter(|cache| cache.positions(capacity) < capacity.context);
        let rings = rings.filter_map(|ring| Some((ring.positions(capacity), ring.window?)));
        let histories = self.histories.iter().map(|ring| (ring.positions(capacity), ring.window));
        let histories = histories.filter(|(positions, _)| *positions < capacity.context);
        rings.chain(histories).map(|(positions, window)| positions + 1 - window).min()
    }

    pub fn cache(&self, id: CacheId) -> &Cache {
        &self.caches[id.0]
    }
}
