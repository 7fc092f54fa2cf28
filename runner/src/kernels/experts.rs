//! Routed experts: which of them a token goes through, their matrices, and the sum of what they make.

use super::{
    Call, GROUPED, HALVES, Kernel, KernelOp, PLAIN, PRELUDE, Read, ReadWrite, Resource, Site, Work,
    overrides,
};
use crate::gpu::{Piece, PlanError, Words};
use crate::plan::{Rows, SlotId, WeightId};

/// Threads for a row of a matrix.
const LANES: u32 = 16;

pub(super) const ROUTE: Kernel = Kernel {
    name: "route",
    op: KernelOp::Route,
    needs: &[],
    entry: "route",
    source: &[PRELUDE, include_str!("route.wgsl")],
    overrides: &[],
    args: &["count", "chosen", "normalised"],
    buffers: &[Read, ReadWrite, ReadWrite],
    workgroup_bytes: 1024,
    invocations: 128,
};

pub(super) const EXPERT_MATMUL: Kernel = Kernel {
    name: "expert_matmul",
    op: KernelOp::ExpertMatmul,
    needs: &[],
    entry: "expert_matmul",
    source: &[PRELUDE, HALVES, GROUPED, include_str!("expert_matmul.wgsl")],
    overrides: &["BITS", "GROUP", "ZERO", "HIGH_FIRST", "TRANSPOSED", "SCALES", "WHOLE", "LANES"],
    args: &["per_token", "sharing", "columns", "expert_rows", "first_row", "rows", "has_bias"],
    buffers: &[Read, Read, Read, Read, Read, ReadWrite],
    workgroup_bytes: 1024,
    invocations: 256,
};

pub(super) const EXPERT_MATMUL_PLAIN: Kernel = Kernel {
    name: "expert_matmul plain",
    op: KernelOp::ExpertMatmulPlain,
    source: &[PRELUDE, HALVES, PLAIN, include_str!("expert_matmul.wgsl")],
    overrides: &["VALUES", "ODD", "LANES"],
    ..EXPERT_MATMUL
};

pub(super) const MIX: Kernel = Kernel {
    name: "mix_experts",
    op: KernelOp::Mix,
    needs: &[],
    entry: "mix_experts",
    source: &[PRELUDE, include_str!("mix.wgsl")],
    overrides: &[],
    args: &["chosen", "width"],
    buffers: &[Read, Read, ReadWrite],
    workgroup_bytes: 0,
    invocations: 256,
};

pub(super) fn route(
    site: Site<'_>,
    logits: SlotId,
    normalised: bool,
    [experts, shares]: [SlotId; 2],
) -> Result<Call, PlanError> {
    let args = [site.width(logits), site.width(experts), u32::from(normalised)];
    let buffers = [logits, experts, shares].map(Resource::Slot);
    site.call(KernelOp::Route, &args, &buffers, Work::per_row(Rows::Tokens, 1))
}

/// One call a piece of the weight; each makes the rows that it has.
pub(super) fn matmul(
    site: Site<'_>,
    x: SlotId,
    experts: SlotId,
    (weight, bias): (WeightId, Option<WeightId>),
    out: SlotId,
) -> Result<Vec<Call>, PlanError> {
    let (words, pieces) = site.pieces(weight)?;
    let op = match words {
        Words::Grouped { .. } => KernelOp::ExpertMatmul,
        Words::Plain { .. } => KernelOp::ExpertMatmulPlain,
    };
    let (per_token, columns, expert_rows) = (site.width(experts), site.width(x), site.width(out));
    let sharing = if site.rows(x) == Rows::Tokens { per_token } else { 1 };
    let bias_buffer = site.optional_vector(bias, site.plan.weight(weight).rows)?;
    let threads = site.threads(op)?;
    let piece_call = |&piece| {
        let Piece { first_row, rows, .. } = piece;
        let has_bias = u32::from(bias.is_some());
        let args = [per_token, sharing, columns, expert_rows, first_row, rows, has_bias];
        let buffers = [
            Resource::Codes(piece),
            Resource::Scales(piece),
            Resource::Slot(x),
            Resource::Slot(experts),
            bias_buffer,
            Resource::Slot(out),
        ];
        let work = Work::per_row(site.rows(out), expert_rows.div_ceil(threads / LANES));
        let call = site.call(op, &args, &buffers, work)?;
        let with_lanes = overrides(words, columns).into_iter().chain([LANES]).collect();
        Ok(Call { overrides: with_lanes, ..call })
    };
    pieces.iter().map(piece_call).collect()
}

pub(super) fn mix(
    site: Site<'_>,
    x: SlotId,
    shares: SlotId,
    out: SlotId,
) -> Result<Call, PlanError> {
    let (chosen, width) = (site.width(shares), site.width(out));
    let buffers = [x, shares, out].map(Resource::Slot);
    let work = site.per_column(Rows::Tokens, width);
    site.call(KernelOp::Mix, &[chosen, width], &buffers, work)
}
