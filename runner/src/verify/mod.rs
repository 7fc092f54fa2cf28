//! What there is to know about a bundle beyond its bytes: whether a device computes what the packed weights say
//! ([`agreement`], [`trace`]), and what the packing has cost ([`cost`]).

mod agreement;
mod bounds;
mod cost;
mod material;
mod statistics;
#[cfg(test)]
mod tests;
mod trace;

pub use agreement::{Agreement, Greedy, Tolerance, agreement};
pub use bounds::{Bound, Place, WeightError, weight_error};
pub use cost::{Continuation, Cost, CostError, Side, cost};
pub use material::{GREEDY_TOKENS, Material, noise, windows};
pub use statistics::{Figure, Statistics};
pub use trace::{StepError, Trace, trace};

/// The most bytes of logits held of one model at a time.
const LOGITS_BYTES: usize = 64 << 20;

/// How many positions' logits are held at a time.
fn positions_at_once(vocab: usize) -> usize {
    (LOGITS_BYTES / 4 / vocab.max(1)).clamp(1, 256)
}
