//! Rows of a table, one for every token.

use super::{
    Call, GROUPED, GROUPED_OVERRIDES, HALVES, Kernel, KernelOp, PLAIN, PLAIN_OVERRIDES, PRELUDE,
    Read, ReadWrite, Resource, Site, overrides,
};
use crate::gpu::{PlanError, Words};
use crate::plan::{Rows, SlotId, WeightId};

pub(super) const GATHER: Kernel = Kernel {
    name: "gather",
    op: KernelOp::Gather,
    needs: &[],
    entry: "gather",
    source: &[PRELUDE, HALVES, GROUPED, include_str!("gather.wgsl")],
    overrides: GROUPED_OVERRIDES,
    args: &["width", "first_row", "rows"],
    buffers: &[Read, Read, Read, ReadWrite],
    workgroup_bytes: 0,
    invocations: 256,
};

pub(super) const GATHER_PLAIN: Kernel = Kernel {
    name: "gather plain",
    op: KernelOp::GatherPlain,
    source: &[PRELUDE, HALVES, PLAIN, include_str!("gather.wgsl")],
    overrides: PLAIN_OVERRIDES,
    ..GATHER
};

/// One call a piece of the table; each writes the tokens whose rows it has.
pub(super) fn calls(site: Site<'_>, table: WeightId, out: SlotId) -> Result<Vec<Call>, PlanError> {
    let (words, pieces) = site.pieces(table)?;
    let op = match words {
        Words::Grouped { .. } => KernelOp::Gather,
        Words::Plain { .. } => KernelOp::GatherPlain,
    };
    let width = site.width(out);
    let piece_call = |&piece| {
        let buffers = [
            Resource::Codes(piece),
            Resource::Scales(piece),
            Resource::Tokens,
            Resource::Slot(out),
        ];
        let work = site.per_column(Rows::Tokens, width);
        let args = [width, piece.first_row, piece.rows];
        let call = site.call(op, &args, &buffers, work)?;
        Ok(Call { overrides: overrides(words, width), ..call })
    };
    pieces.iter().map(piece_call).collect()
}
