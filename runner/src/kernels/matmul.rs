//! A matrix times the rows of a slot: by vectors while there are few, by tiles when there are many.

use packlight_formats::quant::Order;

use super::matvec_q4::{self, Product, Then};
use super::{
    Call, GROUPED, HALVES, Kernel, KernelOp, Need, PLAIN, PRELUDE, Read, ReadWrite, Resource, Site,
    Work, overrides, rows_of,
};
use super::{matmul_coop, matmul_software};
use crate::gpu::{PlanError, Words};
use crate::plan::{SlotId, WeightId};

/// Up to this many rows the weight is read anew for each; beyond, a tile amortises it.
pub(super) const FEW: u32 = 4;

pub(super) const MATMUL_ARGS: &str = include_str!("matmul_args.wgsl");
const LINEAR: &str = include_str!("linear.wgsl");
const DOT: &str = include_str!("dot.wgsl");
const VECTOR: &str = include_str!("matvec.wgsl");
const VECTOR_SUBGROUPS: &str = include_str!("matvec_subgroups.wgsl");
const TILES: &str = include_str!("matmul.wgsl");
const TILE_F32: &str = include_str!("tile_f32.wgsl");
const TILE_F16: &str = include_str!("tile_f16.wgsl");
pub(super) const ENABLE_F16: &str = "enable f16;\n";
pub(super) const ARGS: &[&str] =
    &["rows_of", "columns", "first_row", "rows", "out_width", "has_bias"];

pub(super) const MATVEC: Kernel = Kernel {
    name: "matvec",
    op: KernelOp::Matvec,
    needs: &[],
    entry: "matvec",
    source: &[PRELUDE, HALVES, GROUPED, MATMUL_ARGS, LINEAR, DOT, VECTOR],
    overrides: &["BITS", "GROUP", "ZERO", "HIGH_FIRST", "TRANSPOSED", "SCALES", "WHOLE", "LANES"],
    args: ARGS,
    buffers: &[Read, Read, Read, Read, ReadWrite],
    workgroup_bytes: 1024,
    invocations: 256,
};

pub(super) const MATVEC_PLAIN: Kernel = Kernel {
    name: "matvec plain",
    op: KernelOp::MatvecPlain,
    source: &[PRELUDE, HALVES, PLAIN, MATMUL_ARGS, LINEAR, DOT, VECTOR],
    overrides: &["VALUES", "ODD", "LANES"],
    ..MATVEC
};

pub(super) const MATVEC_SUBGROUPS: Kernel = Kernel {
    name: "matvec subgroups",
    needs: &[Need::Subgroups],
    source: &[PRELUDE, HALVES, GROUPED, MATMUL_ARGS, LINEAR, DOT, VECTOR_SUBGROUPS],
    workgroup_bytes: 0,
    ..MATVEC
};

pub(super) const MATVEC_PLAIN_SUBGROUPS: Kernel = Kernel {
    name: "matvec plain subgroups",
    needs: &[Need::Subgroups],
    source: &[PRELUDE, HALVES, PLAIN, MATMUL_ARGS, LINEAR, DOT, VECTOR_SUBGROUPS],
    workgroup_bytes: 0,
    ..MATVEC_PLAIN
};

pub(super) const MATMUL: Kernel = Kernel {
    name: "matmul",
    op: KernelOp::Matmul,
    needs: &[],
    entry: "matmul",
    source: &[PRELUDE, HALVES, GROUPED, MATMUL_ARGS, LINEAR, TILES, TILE_F32],
    overrides: &["BITS", "GROUP", "ZERO", "HIGH_FIRST", "TRANSPOSED", "SCALES", "WHOLE", "TOKENS"],
    args: ARGS,
    buffers: &[Read, Read, Read, Read, ReadWrite],
    workgroup_bytes: 20 * (17 + 33) * 16,
    invocations: 256,
};

/// Tiles in f16, for quantised weights only: their scales say how large a row's values can be.
pub(super) const MATMUL_F16: Kernel = Kernel {
    name: "matmul f16",
    needs: &[Need::F16],
    source: &[ENABLE_F16, PRELUDE, HALVES, GROUPED, MATMUL_ARGS, LINEAR, TILES, TILE_F16],
    workgroup_bytes: 20 * (17 + 33) * 8 + (256 + 64 + 128) * 4,
    ..MATMUL
};

pub(super) const MATMUL_PLAIN: Kernel = Kernel {
    name: "matmul plain",
    op: KernelOp::MatmulPlain,
    source: &[PRELUDE, HALVES, PLAIN, MATMUL_ARGS, LINEAR, TILES, TILE_F32],
    overrides: &["VALUES", "ODD", "TOKENS"],
    ..MATMUL
};

/// Kernels for few and for many rows, for every piece of the weight; the live row count decides which of them runs.
pub(super) fn calls(
    site: Site<'_>,
    x: SlotId,
    weight: WeightId,
    bias: Option<WeightId>,
    out: SlotId,
) -> Result<Vec<Call>, PlanError> {
    let (words, pieces) = site.pieces(weight)?;
    let (rows, columns, out_width) = (site.rows(out), site.width(x), site.width(out));
    let bias_buffer = site.optional_vector(bias, out_width)?;
    let overrides = overrides(words, columns);
    let (matvec, matmul) = match words {
        Words::Grouped { .. } => (KernelOp::Matvec, KernelOp::Matmul),
        Words::Plain { .. } => (KernelOp::MatvecPlain, KernelOp::MatmulPlain),
    };
    let product = Product { x, norm: None, weight, bias, then: Then::Write, out };
    let few = matvec_q4::calls(site, product)?;
    let lanes = lanes(words, columns);
    let vector_rows = site.threads(matvec)? / lanes;
    // ROWS of matmul.wgsl, and its TOKENS with the row counts that they are for: short tiles waste less, tall ones reuse
    // more.
    let tile_rows = site.threads(matmul)? / 2;
    let tiles = [(32, FEW + 1..=32), (64, 33..=u32::MAX)];
    let many = match matmul_software::calls(site, x, weight, bias, out)? {
        None => matmul_coop::calls(site, x, weight, bias, out)?,
        many => many,
    };
    let (has_few, has_many) = (few.is_some(), many.is_some());
    let mut calls: Vec<Call> = few.into_iter().chain(many).flatten().collect();
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
        if !has_few {
            let few = Work::per_row(rows, piece.rows.div_ceil(vector_rows));
            let vector = site.call(matvec, &args, &buffers, Work { applies: 1..=FEW, ..few })?;
            let with_lanes = overrides.iter().copied().chain([lanes]).collect();
            calls.push(Call { overrides: with_lanes, ..vector });
        }

        if has_many {
            continue;
        }
        let groups = piece.rows.div_ceil(tile_rows);
        for (tile, applies) in tiles.clone() {
            let many = Work { tile, applies, ..Work::per_row(rows, groups) };
            let call = site.call(matmul, &args, &buffers, many)?;
            let with_tokens = overrides.iter().copied().chain([tile]).collect();
            calls.push(Call { overrides: with_tokens, ..call });
        }
    }
    Ok(calls)
}

/// Threads for a row: enough to read its words side by side, few enough that each has work. Where the words of many rows
/// lie side by side, many rows are read at once.
fn lanes(words: Words, columns: u32) -> u32 {
    let words = match words {
        Words::Grouped { order: Order::Kn, .. } => return 8,
        Words::Grouped { layout, .. } => layout.words_per_row(columns.into()),
        Words::Plain { values } => (values.bytes() * u64::from(columns)).div_ceil(4),
    };
    match words {
        ..64 => 8,
        64..128 => 16,
        128..256 => 32,
        _ => 64,
    }
}
