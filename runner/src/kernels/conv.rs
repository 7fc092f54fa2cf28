//! Short convolutions over a ring of what came before.

use super::{Call, Kernel, KernelOp, PRELUDE, Read, ReadWrite, Resource, Site};
use crate::gpu::PlanError;
use crate::plan::{Columns, History, HistoryId, Rows, SlotId, WeightId};

pub(super) const STORE_PRODUCT: Kernel = Kernel {
    name: "store_product",
    op: KernelOp::StoreProduct,
    needs: &[],
    entry: "store_product",
    source: &[PRELUDE, include_str!("store_product.wgsl")],
    overrides: &[],
    args: &["width", "x_offset", "x_stride", "by_offset", "by_stride"],
    buffers: &[Read, Read, ReadWrite],
    workgroup_bytes: 0,
    invocations: 256,
};

pub(super) const CONVOLVE: Kernel = Kernel {
    name: "convolve",
    op: KernelOp::Convolve,
    needs: &[],
    entry: "convolve",
    source: &[PRELUDE, include_str!("convolve.wgsl")],
    overrides: &[],
    args: &["width", "window", "gate_offset", "gate_stride", "has_bias"],
    buffers: &[Read, Read, Read, Read, ReadWrite],
    workgroup_bytes: 0,
    invocations: 256,
};

pub(super) fn store(
    site: Site<'_>,
    x: Columns,
    by: Columns,
    history: HistoryId,
) -> Result<Call, PlanError> {
    let width = site.plan.histories[history.0].width;
    let args = [width, x.offset, site.width(x.slot), by.offset, site.width(by.slot)];
    let buffers = [Resource::Slot(x.slot), Resource::Slot(by.slot), Resource::History(history)];
    site.call(KernelOp::StoreProduct, &args, &buffers, site.per_column(Rows::Tokens, width))
}

pub(super) fn convolve(
    site: Site<'_>,
    history: HistoryId,
    kernel: WeightId,
    bias: Option<WeightId>,
    gate: Columns,
    out: SlotId,
) -> Result<Call, PlanError> {
    let History { width, window } = site.plan.histories[history.0];
    let bias_buffer = site.optional_vector(bias, width)?;
    let has_bias = u32::from(bias.is_some());
    let args = [width, window, gate.offset, site.width(gate.slot), has_bias];
    let buffers = [
        Resource::History(history),
        site.vector(kernel, width * window)?,
        bias_buffer,
        Resource::Slot(gate.slot),
        Resource::Slot(out),
    ];
    site.call(KernelOp::Convolve, &args, &buffers, site.per_column(Rows::Tokens, width))
}
