//! Operations that look at every value once: gates, sums, factors, softcaps and copies.

use packlight_formats::model::Activation;

use super::{Call, Kernel, KernelOp, PRELUDE, Read, ReadWrite, Resource, Site, rows_of};
use crate::gpu::PlanError;
use crate::plan::{Columns, Factor, SlotId};

pub(super) const ACTIVATION: &str = include_str!("activation.wgsl");

/// As activation.wgsl has them.
pub(super) fn activation_number(activation: Activation) -> u32 {
    match activation {
        Activation::Silu => 0,
        Activation::GeluTanh => 1,
    }
}

pub(super) const GATE: Kernel = Kernel {
    name: "gate",
    op: KernelOp::Gate,
    needs: &[],
    entry: "gate",
    source: &[PRELUDE, ACTIVATION, include_str!("gate.wgsl")],
    overrides: &[],
    args: &[
        "rows_of",
        "width",
        "gate_offset",
        "gate_stride",
        "up_offset",
        "up_stride",
        "activation",
    ],
    buffers: &[Read, Read, ReadWrite],
    workgroup_bytes: 0,
    invocations: 256,
};

pub(super) const ADD: Kernel = Kernel {
    name: "add",
    op: KernelOp::Add,
    needs: &[],
    entry: "add",
    source: &[PRELUDE, include_str!("add.wgsl")],
    overrides: &[],
    args: &["rows_of", "width", "scale"],
    buffers: &[Read, ReadWrite],
    workgroup_bytes: 0,
    invocations: 256,
};

pub(super) const SCALE: Kernel = Kernel {
    name: "scale",
    op: KernelOp::Scale,
    needs: &[],
    entry: "scale",
    source: &[PRELUDE, include_str!("scale.wgsl")],
    overrides: &[],
    args: &["rows_of", "width", "factor", "has_weight"],
    buffers: &[Read, ReadWrite],
    workgroup_bytes: 0,
    invocations: 256,
};

pub(super) const SOFTCAP: Kernel = Kernel {
    name: "softcap",
    op: KernelOp::Softcap,
    needs: &[],
    entry: "softcap",
    source: &[PRELUDE, include_str!("softcap.wgsl")],
    overrides: &[],
    args: &["rows_of", "width", "cap"],
    buffers: &[ReadWrite],
    workgroup_bytes: 0,
    invocations: 256,
};

pub(super) const COPY: Kernel = Kernel {
    name: "copy",
    op: KernelOp::Copy,
    needs: &[],
    entry: "copy",
    source: &[PRELUDE, include_str!("copy.wgsl")],
    overrides: &[],
    args: &["from_rows_of", "rows_of", "width"],
    buffers: &[Read, ReadWrite],
    workgroup_bytes: 0,
    invocations: 256,
};

pub(super) fn gate(
    site: Site<'_>,
    gate: Columns,
    up: Columns,
    activation: Activation,
    out: SlotId,
) -> Result<Call, PlanError> {
    let activation = activation_number(activation);
    let (rows, width) = (site.rows(out), site.width(out));
    let [gate_stride, up_stride] = [gate, up].map(|columns| site.width(columns.slot));
    let args = [rows_of(rows), width, gate.offset, gate_stride, up.offset, up_stride, activation];
    let buffers = [Resource::Slot(gate.slot), Resource::Slot(up.slot), Resource::Slot(out)];
    site.call(KernelOp::Gate, &args, &buffers, site.per_column(rows, width))
}

pub(super) fn add(
    site: Site<'_>,
    x: SlotId,
    y: SlotId,
    scale: Option<f32>,
) -> Result<Call, PlanError> {
    let scale = scale.unwrap_or(1.0);
    let (rows, width) = (site.rows(x), site.width(x));
    let args = [rows_of(rows), width, scale.to_bits()];
    let buffers = [Resource::Slot(y), Resource::Slot(x)];
    site.call(KernelOp::Add, &args, &buffers, site.per_column(rows, width))
}

pub(super) fn scale(site: Site<'_>, x: SlotId, by: Factor) -> Result<Call, PlanError> {
    let (rows, width) = (site.rows(x), site.width(x));
    let (factor, weight) = match by {
        Factor::Constant(factor) => (factor, Resource::Nothing),
        Factor::Weight(weight) => (1.0, site.vector(weight, 1)?),
    };
    let has_weight = u32::from(weight != Resource::Nothing);
    let args = [rows_of(rows), width, factor.to_bits(), has_weight];
    let buffers = [weight, Resource::Slot(x)];
    site.call(KernelOp::Scale, &args, &buffers, site.per_column(rows, width))
}

pub(super) fn softcap(site: Site<'_>, x: SlotId, cap: f32) -> Result<Call, PlanError> {
    let (rows, width) = (site.rows(x), site.width(x));
    let args = [rows_of(rows), width, cap.to_bits()];
    site.call(KernelOp::Softcap, &args, &[Resource::Slot(x)], site.per_column(rows, width))
}

pub(super) fn copy(site: Site<'_>, x: SlotId, out: SlotId) -> Result<Call, PlanError> {
    let (rows, width) = (site.rows(out), site.width(x));
    let args = [rows_of(site.rows(x)), rows_of(rows), width];
    let buffers = [Resource::Slot(x), Resource::Slot(out)];
    site.call(KernelOp::Copy, &args, &buffers, site.per_column(rows, width))
}
