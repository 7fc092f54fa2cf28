//! A matrix times many rows where threads run on a processor's cores.

use super::matmul::{ARGS, FEW, MATMUL_ARGS};
use super::{
    Call, HALVES, Kernel, KernelOp, Need, PRELUDE, Read, ReadWrite, Resource, Site, Work, choose,
    matvec_q4, rows_of,
};
use crate::gpu::PlanError;
use crate::plan::{SlotId, WeightId};

/// TOKENS and ROWS in matmul_q4_software.wgsl.
const TILE: (u32, u32) = (8, 64);

pub(super) const MATMUL_SOFTWARE: Kernel = Kernel {
    name: "matmul q4 software",
    op: KernelOp::MatmulSoftware,
    needs: &[Need::Software],
    entry: "matmul",
    source: &[
        PRELUDE,
        HALVES,
        MATMUL_ARGS,
        matvec_q4::CODES,
        matvec_q4::WEIGHTS,
        include_str!("matmul_q4_software.wgsl"),
    ],
    overrides: &["ZERO", "SCALES"],
    args: ARGS,
    buffers: &[Read, Read, Read, Read, ReadWrite],
    workgroup_bytes: 0,
    invocations: 8,
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
    let Some(overrides) = matvec_q4::suits(words, columns) else { return Ok(None) };
    let Some(kernel) = choose(KernelOp::MatmulSoftware, site.caps).chosen else { return Ok(None) };
    let bias_buffer = site.optional_vector(bias, out_width)?;
    let (tokens, tile_rows) = TILE;
    let tile = tokens * kernel.threads(site.caps);
    let call = |piece: &_| {
        let &super::Piece { first_row, rows: piece_rows, .. } = piece;
        let args =
            [rows_of(rows), columns, first_row, piece_rows, out_width, bias.is_some().into()];
        let buffers = [
            Resource::Codes(*piece),
            Resource::Scales(*piece),
            Resource::Slot(x),
            bias_buffer,
            Resource::Slot(out),
        ];
        let work = Work::per_row(rows, piece_rows.div_ceil(tile_rows));
        let work = Work { tile, applies: FEW + 1..=u32::MAX, ..work };
        let call = site.call(KernelOp::MatmulSoftware, &args, &buffers, work)?;
        Ok(Call { overrides: overrides.to_vec(), ..call })
    };
    pieces.iter().map(call).collect::<Result<_, _>>().map(Some)
}
