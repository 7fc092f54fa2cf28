//! A quantised matrix times the rows of a slot: by vectors while there are few, by tiles when there are many.

use super::{
    Call, GROUPED, GROUPED_OVERRIDES, Kernel, KernelOp, PRELUDE, Read, ReadWrite, Resource, Site,
    Work, grouped_overrides, rows_of,
};
use crate::gpu::{Piece, PlanError};
use crate::plan::{SlotId, WeightId};

/// Up to this many rows the weight is read anew for each; beyond, a tile amortises it.
const FEW: u32 = 4;

const LINEAR: &str = include_str!("linear.wgsl");
const ARGS: &[&str] = &["rows_of", "columns", "first_row", "rows", "out_width", "has_bias"];

pub(super) const MATVEC: Kernel = Kernel {
    name: "matvec",
    op: KernelOp::Matvec,
    source: &[PRELUDE, GROUPED, LINEAR, include_str!("matvec.wgsl")],
    overrides: GROUPED_OVERRIDES,
    args: ARGS,
    buffers: &[Read, Read, Read, Read, ReadWrite],
    workgroup_bytes: 1024,
    invocations: 256,
};

pub(super) const MATMUL: Kernel = Kernel {
    name: "matmul",
    op: KernelOp::Matmul,
    source: &[PRELUDE, GROUPED, LINEAR, include_str!("matmul.wgsl")],
    overrides: GROUPED_OVERRIDES,
    args: ARGS,
    buffers: &[Read, Read, Read, Read, ReadWrite],
    workgroup_bytes: 40 * (33 + 65) * 4,
    invocations: 256,
};

/// Both kernels for every piece of the weight; the live row count decides which of them runs.
pub(super) fn calls(
    site: Site<'_>,
    x: SlotId,
    weight: WeightId,
    bias: Option<WeightId>,
    out: SlotId,
) -> Result<Vec<Call>, PlanError> {
    let (layout, pieces) = site.pieces(weight)?;
    let (rows, columns, out_width) = (site.rows(out), site.width(x), site.width(out));
    let bias_buffer = match bias {
        Some(bias) => site.vector(bias, out_width)?,
        None => Resource::Nothing,
    };
    let piece_call = |op, piece: Piece, work| {
        let has_bias = u32::from(bias.is_some());
        let args = [rows_of(rows), columns, piece.first_row, piece.rows, out_width, has_bias];
        let buffers = [
            Resource::Codes(piece),
            Resource::Scales(piece),
            Resource::Slot(x),
            bias_buffer,
            Resource::Slot(out),
        ];
        let call = site.call(op, &args, &buffers, work)?;
        Ok(Call { overrides: grouped_overrides(layout), ..call })
    };
    let mut calls = Vec::with_capacity(2 * pieces.len());
    for &piece in pieces {
        // The divisors are the ROWS of the two kernels.
        let few = Work { rows, tile: 1, groups: piece.rows.div_ceil(4), applies: 1..=FEW };
        let many =
            Work { rows, tile: 32, groups: piece.rows.div_ceil(64), applies: FEW + 1..=u32::MAX };
        calls.push(piece_call(KernelOp::Matvec, piece, few)?);
        calls.push(piece_call(KernelOp::Matmul, piece, many)?);
    }
    Ok(calls)
}
