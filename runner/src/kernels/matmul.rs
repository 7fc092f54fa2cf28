//! A matrix times the rows of a slot: by vectors while there are few, by tiles when there are many.

use super::{
    Call, GROUPED, GROUPED_OVERRIDES, Kernel, KernelOp, PLAIN, PLAIN_OVERRIDES, PRELUDE, Read,
    ReadWrite, Resource, Site, Work, overrides, rows_of,
};
use crate::gpu::{PlanError, Words};
use crate::plan::{SlotId, WeightId};

/// Up to this many rows the weight is read anew for each; beyond, a tile amortises it.
const FEW: u32 = 4;

const LINEAR: &str = include_str!("linear.wgsl");
const ARGS: &[&str] = &["rows_of", "columns", "first_row", "rows", "out_width", "has_bias"];

pub(super) const MATVEC: Kernel = Kernel {
    name: "matvec",
    op: KernelOp::Matvec,
    source: &[PRELUDE, GROUPED, LINEAR, include_str!("matvec.wgsl")],
    overrides: &["BITS", "GROUP", "WHOLE", "LANES"],
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
    workgroup_bytes: 20 * (9 + 33) * 16,
    invocations: 256,
};

pub(super) const MATVEC_PLAIN: Kernel = Kernel {
    op: KernelOp::MatvecPlain,
    source: &[PRELUDE, PLAIN, LINEAR, include_str!("matvec.wgsl")],
    overrides: &["BFLOAT16", "LANES"],
    ..MATVEC
};

pub(super) const MATMUL_PLAIN: Kernel = Kernel {
    op: KernelOp::MatmulPlain,
    source: &[PRELUDE, PLAIN, LINEAR, include_str!("matmul.wgsl")],
    overrides: PLAIN_OVERRIDES,
    ..MATMUL
};

/// Both kernels for every piece of the weight; the live row count decides which of them runs.
pub(super) fn calls(
    site: Site<'_>,
    x: SlotId,
    weight: WeightId,
    bias: Option<WeightId>,
    out: SlotId,
) -> Result<Vec<Call>, PlanError> {
    let (words, pieces) = site.pieces(weight)?;
    let (rows, columns, out_width) = (site.rows(out), site.width(x), site.width(out));
    let bias_buffer = match bias {
        Some(bias) => site.vector(bias, out_width)?,
        None => Resource::Nothing,
    };
    let overrides = overrides(words, columns);
    let (matvec_op, matmul_op, words_per_row) = match words {
        Words::Grouped(layout) => {
            (KernelOp::Matvec, KernelOp::Matmul, layout.words_per_row(columns.into()))
        }
        Words::Float16 | Words::Bfloat16 => {
            (KernelOp::MatvecPlain, KernelOp::MatmulPlain, u64::from(columns / 2))
        }
    };
    let lanes = lanes(words_per_row);
    let mut calls = Vec::with_capacity(2 * pieces.len());
    for &piece in pieces {
        let has_bias = u32::from(bias.is_some());
        let args = [rows_of(rows), columns, piece.first_row, piece.rows, out_width, has_bias];
        let buffers = [
            Resource::Codes(piece),
            Resource::Scales(piece),
            Resource::Slot(x),
            bias_buffer,
            Resource::Slot(out),
        ];
        let few =
            Work { rows, tile: 1, groups: piece.rows.div_ceil(256 / lanes), applies: 1..=FEW };
        let matvec = site.call(matvec_op, &args, &buffers, few)?;
        let with_lanes = overrides.iter().copied().chain([lanes]).collect();
        calls.push(Call { overrides: with_lanes, ..matvec });

        // TOKENS and ROWS of matmul.wgsl.
        let (tile, groups) = (32, piece.rows.div_ceil(128));
        let many = Work { rows, tile, groups, applies: FEW + 1..=u32::MAX };
        let matmul = site.call(matmul_op, &args, &buffers, many)?;
        calls.push(Call { overrides: overrides.clone(), ..matmul });
    }
    Ok(calls)
}

/// Threads for a row of so many words: enough to read it side by side, few enough that each has work.
fn lanes(words: u64) -> u32 {
    match words {
        ..64 => 8,
        64..128 => 16,
        128..256 => 32,
        _ => 64,
    }
}
