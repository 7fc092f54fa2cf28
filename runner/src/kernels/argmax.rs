//! Greedy decoding on the GPU: only the token's id is read back.

use super::{Call, Kernel, KernelOp, PRELUDE, Read, ReadWrite, Resource, Site, Work};
use crate::gpu::PlanError;
use crate::plan::{Rows, SlotId};

const BEST: &str = include_str!("best.wgsl");

pub(super) const ARGMAX_PARTS: Kernel = Kernel {
    name: "argmax parts",
    op: KernelOp::ArgmaxParts,
    needs: &[],
    entry: "argmax_parts",
    source: &[PRELUDE, BEST, include_str!("argmax_parts.wgsl")],
    overrides: &[],
    args: &["width", "parts"],
    buffers: &[Read, ReadWrite],
    workgroup_bytes: 2048,
    invocations: 256,
};

pub(super) const ARGMAX: Kernel = Kernel {
    name: "argmax",
    op: KernelOp::Argmax,
    needs: &[],
    entry: "argmax",
    source: &[PRELUDE, BEST, include_str!("argmax.wgsl")],
    overrides: &[],
    args: &["parts"],
    buffers: &[Read, ReadWrite],
    workgroup_bytes: 2048,
    invocations: 256,
};

/// Parts with enough values for a workgroup to do.
const PART: u32 = 1024;
const MOST_PARTS: u32 = 128;

pub(super) fn calls(site: Site<'_>, logits: SlotId) -> Result<Vec<Call>, PlanError> {
    let width = site.width(logits);
    let parts = width.div_ceil(PART).min(MOST_PARTS);
    let best = Resource::Scratch { floats: 2 * MOST_PARTS };
    // The last row only, however many there are.
    let work = |groups| Work { tile: u32::MAX, ..Work::per_row(Rows::Outputs, groups) };
    let slot = Resource::Slot(logits);
    let some = site.call(KernelOp::ArgmaxParts, &[width, parts], &[slot, best], work(parts))?;
    let last = site.call(KernelOp::Argmax, &[parts], &[best, Resource::Tokens], work(1))?;
    Ok(vec![some, last])
}
