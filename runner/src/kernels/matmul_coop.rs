//! A matrix times many rows with cooperative matrices: x becomes f16 once, then every tile is multiplied.

use super::matmul::{ARGS, ENABLE_F16, FEW, MATMUL_ARGS};
use super::{
    Call, Kernel, KernelOp, Need, PRELUDE, Read, ReadWrite, Resource, Site, Work, choose,
    matvec_q4, rows_of,
};
use crate::gpu::PlanError;
use crate::plan::{SlotId, WeightId};

/// TOKENS and ROWS in matmul_coop.wgsl.
const TILE: (u32, u32) = (64, 128);
const THREADS: u32 = 256;

pub(super) const HALVE: Kernel = Kernel {
    name: "halve",
    op: KernelOp::Halve,
    needs: &[Need::F16],
    entry: "halve",
    source: &[ENABLE_F16, PRELUDE, include_str!("halve.wgsl")],
    overrides: &[],
    args: &["rows_of", "columns"],
    buffers: &[Read, ReadWrite, ReadWrite],
    workgroup_bytes: 1024,
    invocations: THREADS,
};

pub(super) const MATMUL_COOP: Kernel = Kernel {
    name: "matmul coop",
    op: KernelOp::MatmulCoop,
    needs: &[Need::F16, Need::Subgroups, Need::CooperativeMatrices],
    entry: "matmul",
    source: &[
        ENABLE_F16,
        "enable wgpu_cooperative_matrix;\n",
        PRELUDE,
        MATMUL_ARGS,
        matvec_q4::CODES,
        include_str!("matmul_coop.wgsl"),
    ],
    overrides: &["ZERO"],
    args: ARGS,
    buffers: &[Read, Read, Read, Read, Read, ReadWrite],
    workgroup_bytes: (64 + 128) * 10 * 8 + 8 * 256 * 4,
    invocations: THREADS,
};

/// Calls for more than [`FEW`] rows; `None` where the device or the layout of the weight does not allow for them.
pub(super) fn calls(
    site: Site<'_>,
    x: SlotId,
    weight: WeightId,
    bias: Option<WeightId>,
    out: SlotId,
) -> Result<Option<Vec<Call>>, PlanError> {
    let (words, pieces) = site.pieces(weight)?;
    let (rows, columns, out_width) = (site.rows(out), site.width(x), site.width(out));
    // Scales must be f16, so that products with codes are.
    let Some([zero, 0]) = matvec_q4::suits(words, columns) else { return Ok(None) };
    if choose(KernelOp::MatmulCoop, site.caps).chosen.is_none() {
        return Ok(None);
    }
    let bias_buffer = site.optional_vector(bias, out_width)?;
    let (halves, factors) = (Resource::Halves { columns }, Resource::Factors);
    let many = |work| Work { applies: FEW + 1..=u32::MAX, ..work };
    let work = many(Work::per_row(rows, 1));
    let buffers = [Resource::Slot(x), halves, factors];
    let mut calls = vec![site.call(KernelOp::Halve, &[rows_of(rows), columns], &buffers, work)?];
    let (tokens, tile_rows) = TILE;
    for &piece in pieces {
        let has_bias = bias.is_some().into();
        let args = [rows_of(rows), columns, piece.first_row, piece.rows, out_width, has_bias];
        let buffers = [
            Resource::Codes(piece),
            Resource::Scales(piece),
            halves,
            factors,
            bias_buffer,
            Resource::Slot(out),
        ];
        let groups = piece.rows.div_ceil(tile_rows);
        let work = many(Work { tile: tokens, ..Work::per_row(rows, groups) });
        let call = site.call(KernelOp::MatmulCoop, &args, &buffers, work)?;
        calls.push(Call { overrides: vec![zero], ..call });
    }
    Ok(Some(calls))
}
