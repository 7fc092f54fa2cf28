//! Rows of a quantised table, one for every token.

use super::{
    Call, GROUPED, GROUPED_OVERRIDES, Kernel, KernelOp, PRELUDE, Read, ReadWrite, Resource, Site,
    Work, grouped_overrides,
};
use crate::gpu::PlanError;
use crate::plan::{Rows, SlotId, WeightId};

pub(super) const GATHER: Kernel = Kernel {
    name: "gather",
    op: KernelOp::Gather,
    source: &[PRELUDE, GROUPED, include_str!("gather.wgsl")],
    overrides: GROUPED_OVERRIDES,
    args: &["width", "first_row", "rows"],
    buffers: &[Read, Read, Read, ReadWrite],
    workgroup_bytes: 0,
    invocations: 256,
};

/// One call a piece of the table; each writes the tokens whose rows it has.
pub(super) fn calls(site: Site<'_>, table: WeightId, out: SlotId) -> Result<Vec<Call>, PlanError> {
    let (layout, pieces) = site.pieces(table)?;
    let width = site.width(out);
    let piece_call = |&piece| {
        let buffers = [
            Resource::Codes(piece),
            Resource::Scales(piece),
            Resource::Tokens,
            Resource::Slot(out),
        ];
        let work = Work::per_column(Rows::Tokens, width);
        let args = [width, piece.first_row, piece.rows];
        let call = site.call(KernelOp::Gather, &args, &buffers, work)?;
        Ok(Call { overrides: grouped_overrides(layout, width), ..call })
    };
    pieces.iter().map(piece_call).collect()
}
