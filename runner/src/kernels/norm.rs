//! RMS norms: of whole rows into another slot, and of every head in place.

use super::{
    Call, Kernel, KernelOp, Need, PRELUDE, Read, ReadWrite, Resource, Site, Work, rows_of,
};
use crate::gpu::PlanError;
use crate::plan::{Heads, SlotId, WeightId};

const NORM: &str = include_str!("norm.wgsl");
const SUM_WORKGROUP: &str = include_str!("sum_workgroup.wgsl");
const SUM_SUBGROUPS: &str = include_str!("sum_subgroups.wgsl");
const ROWS: &str = include_str!("rms_norm.wgsl");
const ROWS_ADD: &str = include_str!("norm_add.wgsl");
const HEADS: &str = include_str!("head_norm.wgsl");
const ARGS: &[&str] =
    &["rows_of", "heads", "width", "offset", "stride", "eps", "has_weight", "scale"];

pub(super) const RMS_NORM: Kernel = Kernel {
    name: "rms_norm",
    op: KernelOp::RmsNorm,
    needs: &[],
    entry: "rms_norm",
    source: &[PRELUDE, SUM_WORKGROUP, NORM, ROWS],
    overrides: &[],
    args: ARGS,
    buffers: &[Read, Read, ReadWrite],
    workgroup_bytes: 1024,
    invocations: 256,
};

/// The norm of what a sublayer has made, and the sum with what it was made of.
pub(super) const NORM_ADD: Kernel = Kernel {
    name: "norm add",
    op: KernelOp::NormAdd,
    entry: "norm_add",
    source: &[PRELUDE, SUM_WORKGROUP, NORM, ROWS_ADD],
    ..RMS_NORM
};

pub(super) const NORM_ADD_SUBGROUPS: Kernel = Kernel {
    name: "norm add subgroups",
    needs: &[Need::Subgroups],
    source: &[PRELUDE, SUM_SUBGROUPS, NORM, ROWS_ADD],
    ..NORM_ADD
};

pub(super) const HEAD_NORM: Kernel = Kernel {
    name: "head_norm",
    op: KernelOp::HeadNorm,
    needs: &[],
    entry: "head_norm",
    source: &[PRELUDE, SUM_WORKGROUP, NORM, HEADS],
    overrides: &[],
    args: ARGS,
    buffers: &[Read, ReadWrite],
    workgroup_bytes: 1024,
    invocations: 256,
};

pub(super) const RMS_NORM_SUBGROUPS: Kernel = Kernel {
    name: "rms_norm subgroups",
    needs: &[Need::Subgroups],
    source: &[PRELUDE, SUM_SUBGROUPS, NORM, ROWS],
    ..RMS_NORM
};

pub(super) const HEAD_NORM_SUBGROUPS: Kernel = Kernel {
    name: "head_norm subgroups",
    needs: &[Need::Subgroups],
    source: &[PRELUDE, SUM_SUBGROUPS, NORM, HEADS],
    ..HEAD_NORM
};

pub(super) fn rms_norm(
    site: Site<'_>,
    x: SlotId,
    weight: WeightId,
    eps: f32,
    out: SlotId,
) -> Result<Call, PlanError> {
    let (rows, width) = (site.rows(x), site.width(x));
    let args = [rows_of(rows), 1, width, 0, width, eps.to_bits(), 1, 0];
    let buffers = [site.vector(weight, width)?, Resource::Slot(x), Resource::Slot(out)];
    site.call(KernelOp::RmsNorm, &args, &buffers, Work::per_row(rows, 1))
}

/// `out += scale * norm(x)`
pub(super) fn rms_norm_add(
    site: Site<'_>,
    (x, weight, eps): (SlotId, WeightId, f32),
    out: SlotId,
    scale: f32,
) -> Result<Call, PlanError> {
    let (rows, width) = (site.rows(x), site.width(x));
    let args = [rows_of(rows), 1, width, 0, width, eps.to_bits(), 1, scale.to_bits()];
    let buffers = [site.vector(weight, width)?, Resource::Slot(x), Resource::Slot(out)];
    site.call(KernelOp::NormAdd, &args, &buffers, Work::per_row(rows, 1))
}

pub(super) fn head_norm(
    site: Site<'_>,
    x: Heads,
    weight: Option<WeightId>,
    eps: f32,
) -> Result<Call, PlanError> {
    let Heads { slot, offset, heads, head_dim } = x;
    let rows = site.rows(slot);
    let has_weight = u32::from(weight.is_some());
    let weight = site.optional_vector(weight, head_dim)?;
    let stride = site.width(slot);
    let args = [rows_of(rows), heads, head_dim, offset, stride, eps.to_bits(), has_weight, 0];
    let buffers = [weight, Resource::Slot(slot)];
    site.call(KernelOp::HeadNorm, &args, &buffers, Work::per_row(rows, heads))
}
