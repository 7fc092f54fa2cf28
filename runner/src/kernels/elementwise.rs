//! Operations that look at every value once: the MLP's gate, the residual's sum, the choice of rows that get logits.

use packlight_formats::model::Activation;

use super::{Call, Kernel, KernelOp, PRELUDE, Read, ReadWrite, Resource, Site, Work, rows_of};
use crate::gpu::PlanError;
use crate::plan::{Rows, SlotId};

pub(super) const GATE: Kernel = Kernel {
    name: "gate",
    op: KernelOp::Gate,
    source: &[PRELUDE, include_str!("gate.wgsl")],
    overrides: &[],
    args: &["rows_of", "width"],
    buffers: &[Read, ReadWrite],
    workgroup_bytes: 0,
    invocations: 256,
};

pub(super) const ADD: Kernel = Kernel {
    name: "add",
    op: KernelOp::Add,
    source: &[PRELUDE, include_str!("add.wgsl")],
    overrides: &[],
    args: &["rows_of", "width"],
    buffers: &[Read, ReadWrite],
    workgroup_bytes: 0,
    invocations: 256,
};

pub(super) const LAST_ROWS: Kernel = Kernel {
    name: "last_rows",
    op: KernelOp::LastRows,
    source: &[PRELUDE, include_str!("last_rows.wgsl")],
    overrides: &[],
    args: &["width"],
    buffers: &[Read, ReadWrite],
    workgroup_bytes: 0,
    invocations: 256,
};

pub(super) fn gate(
    site: Site<'_>,
    x: SlotId,
    activation: Activation,
    out: SlotId,
) -> Result<Call, PlanError> {
    // The kernel knows this one; another would bring its own.
    let Activation::Silu = activation;
    let (rows, width) = (site.rows(out), site.width(out));
    let buffers = [Resource::Slot(x), Resource::Slot(out)];
    let work = Work::per_column(rows, width);
    site.call(KernelOp::Gate, &[rows_of(rows), width], &buffers, work)
}

pub(super) fn add(site: Site<'_>, x: SlotId, y: SlotId) -> Result<Call, PlanError> {
    let (rows, width) = (site.rows(x), site.width(x));
    let buffers = [Resource::Slot(y), Resource::Slot(x)];
    site.call(KernelOp::Add, &[rows_of(rows), width], &buffers, Work::per_column(rows, width))
}

pub(super) fn last_rows(site: Site<'_>, x: SlotId, out: SlotId) -> Result<Call, PlanError> {
    let width = site.width(x);
    let buffers = [Resource::Slot(x), Resource::Slot(out)];
    site.call(KernelOp::LastRows, &[width], &buffers, Work::per_column(Rows::Outputs, width))
}
