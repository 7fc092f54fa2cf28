//! Rows of a table, one for every token.

use super::{
    Call, GROUPED, GROUPED_OVERRIDES, Kernel, KernelOp, PLAIN, PLAIN_OVERRIDES, PRELUDE, Read,
    ReadWrite, Resource, Site, Work, overrides,
};
use crate::gpu::{PlanError, Words};
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

pub(super) const GATHER_PLAIN: Kernel = Kernel {
    name: "gather",
    op: KernelOp::GatherPlain,
    source: &[PRELUDE, PLAIN, include_str!("gather.wgsl")],
    overrides: PLAIN_OVERRIDES,
    ..GATHER
};

/// One call a piece of the table; each writes the tokens whose rows it has.
pub(super) fn calls(site: Site<'_>, table: WeightId, out: SlotId) -> Result<Vec<Call>, PlanError> {
    let (words, pieces) = site.pieces(table)?;
    let op = match words {
        Words::Grouped(_) => KernelOp::Gather,
        Words::Float16 | Words::Bfloat16 => KernelOp::GatherPlain,
    };
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
        let call = site.call(op, &args, &buffers, work)?;
        Ok(Call { overrides: overrides(words, width), ..call })
    };
    pieces.iter().map(piece_call).collect()
}
