//! Rotary positions.
//!
//! The angles are computed on the CPU, for the tokens of each call: WGSL promises the accuracy of `sin` and `cos` only
//! within a half turn, and a position is thousands of them.

use packlight_formats::rope::{Pairing, Rope};

use super::{Call, Kernel, KernelOp, PRELUDE, Read, ReadWrite, Resource, Site};
use crate::gpu::PlanError;
use crate::plan::{Heads, RopeIndex, Rows};

pub(super) const ROPE: Kernel = Kernel {
    name: "rope",
    op: KernelOp::Rope,
    needs: &[],
    entry: "rope",
    source: &[PRELUDE, include_str!("rope.wgsl")],
    overrides: &[],
    args: &["heads", "head_dim", "offset", "stride", "pairs", "step", "gap"],
    buffers: &[Read, ReadWrite],
    workgroup_bytes: 0,
    invocations: 256,
};

pub(super) fn call(site: Site<'_>, x: Heads, rope: RopeIndex) -> Result<Call, PlanError> {
    let Heads { slot, offset, heads, head_dim } = x;
    let Rope { width, pairing, .. } = site.plan.ropes[rope.0];
    let pairs = width / 2;
    let [step, gap] = match pairing {
        Pairing::Halves => [1, pairs],
        Pairing::Neighbours => [2, 1],
    };
    let args = [heads, head_dim, offset, site.width(slot), pairs, step, gap];
    let buffers = [Resource::Turns(rope), Resource::Slot(slot)];
    let work = site.per_column(Rows::Tokens, heads * pairs);
    site.call(KernelOp::Rope, &args, &buffers, work)
}
