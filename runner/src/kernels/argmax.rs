//! Greedy decoding on the GPU: only the token's id is read back.

use super::{Call, Kernel, KernelOp, PRELUDE, Read, ReadWrite, Resource, Site, Work};
use crate::gpu::PlanError;
use crate::plan::{Rows, SlotId};

pub(super) const ARGMAX: Kernel = Kernel {
    name: "argmax",
    op: KernelOp::Argmax,
    needs: &[],
    entry: "argmax",
    source: &[PRELUDE, include_str!("argmax.wgsl")],
    overrides: &[],
    args: &["width"],
    buffers: &[Read, ReadWrite],
    workgroup_bytes: 2048,
    invocations: 256,
};

pub(super) fn call(site: Site<'_>, logits: SlotId) -> Result<Call, PlanError> {
    // A single workgroup looks at the last row only, however many there are.
    let work = Work { rows: Rows::Outputs, tile: u32::MAX, groups: 1, applies: 1..=u32::MAX };
    let buffers = [Resource::Slot(logits), Resource::Token];
    site.call(KernelOp::Argmax, &[site.width(logits)], &buffers, work)
}
