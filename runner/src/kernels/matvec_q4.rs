//! A matrix times few rows, for the weights that most models have: groups of 32 codes of 4 bits. What stands around the
//! matmul in a plan can be done on the way ([`super::fusion`]).

use packlight_formats::model::Activation;
use packlight_formats::quant::Order;

use super::elementwise::{ACTIVATION, activation_number};
use super::matmul::FEW;
use super::{
    Call, HALVES, Kernel, KernelOp, Need, PRELUDE, Piece, Read, ReadWrite, Resource, Site, Work,
    number, rows_of,
};
use crate::gpu::{PlanError, Words};
use crate::plan::{SlotId, WeightId};

/// How words become numbers.
pub(super) const CODES: &str = include_str!("codes_q4.wgsl");
pub(super) const WEIGHTS: &str = include_str!("weights_q4.wgsl");
const REDUCED: &str = include_str!("reduced.wgsl");
const PRODUCT: &str = include_str!("product_q4.wgsl");
const SOURCE: &str = include_str!("matvec_q4.wgsl");

pub(super) const MATVEC_Q4: Kernel = Kernel {
    name: "matvec q4",
    op: KernelOp::MatvecQ4,
    needs: &[],
    entry: "matvec",
    source: &[
        PRELUDE,
        HALVES,
        ACTIVATION,
        CODES,
        WEIGHTS,
        PRODUCT,
        REDUCED,
        include_str!("reduce_workgroup.wgsl"),
        SOURCE,
    ],
    overrides: &["ZERO", "SCALES", "NORM", "GATED", "RESIDUAL", "LANES", "TILE"],
    args: &[
        "from_rows_of",
        "rows_of",
        "columns",
        "rows",
        "outputs",
        "first_output",
        "out_width",
        "gate_row",
        "up_row",
        "has_bias",
        "activation",
        "eps",
        "scale",
        "passes",
    ],
    buffers: &[Read, Read, Read, Read, Read, ReadWrite],
    workgroup_bytes: MOST_LANES * 9 * 16 + 128 * (16 + 4),
    invocations: 128,
};

pub(super) const MATVEC_Q4_SUBGROUPS: Kernel = Kernel {
    name: "matvec q4 subgroups",
    needs: &[Need::Subgroups],
    source: &[
        PRELUDE,
        HALVES,
        ACTIVATION,
        CODES,
        WEIGHTS,
        PRODUCT,
        REDUCED,
        include_str!("reduce_subgroups.wgsl"),
        SOURCE,
    ],
    ..MATVEC_Q4
};

pub(super) const MATVEC_Q4_SOFTWARE: Kernel = Kernel {
    name: "matvec q4 software",
    needs: &[Need::Software],
    source: &[
        PRELUDE,
        HALVES,
        ACTIVATION,
        CODES,
        WEIGHTS,
        PRODUCT,
        include_str!("matvec_q4_software.wgsl"),
    ],
    overrides: &["ZERO", "SCALES", "NORM", "GATED", "RESIDUAL"],
    workgroup_bytes: 0,
    invocations: 8,
    ..MATVEC_Q4
};

/// Threads that may share a row, and the workgroups with which a large GPU is busy then: the fewer threads, the more rows
/// each workgroup sums at once, but the longer it takes.
const LANES: [(u32, u32); 3] = [(8, 512), (16, 256), (32, 256)];
/// Those that do so where none of these are enough.
const MOST_LANES: u32 = 64;
/// More workgroups than these keep no device busier; each takes more rows instead.
const MOST_WORKGROUPS: u32 = 1024;

/// A matmul and what is done with it in passing.
#[derive(Clone, Copy)]
pub(super) struct Product {
    pub(super) x: SlotId,
    /// Of `x`, before anything else: weight and epsilon.
    pub(super) norm: Option<(WeightId, f32)>,
    pub(super) weight: WeightId,
    pub(super) bias: Option<WeightId>,
    pub(super) then: Then,
    pub(super) out: SlotId,
}

/// What becomes of the sums.
#[derive(Clone, Copy)]
pub(super) enum Then {
    Write,
    /// `out += scale * sums`
    Add {
        scale: f32,
    },
    /// `out = act(sums from gate on) * (sums from up on)`
    Gate {
        gate: u32,
        up: u32,
        activation: Activation,
    },
}

/// The code that stands for zero and the number of the scales' type, where weights are laid out as the kernel reads them.
pub(super) fn suits(words: Words, columns: u32) -> Option<[u32; 2]> {
    let Words::Grouped { layout, order: Order::Nk, scales } = words else { return None };
    let whole = layout.bits == 4 && layout.group == 32 && columns.is_multiple_of(32);
    (whole && !layout.high_first()).then(|| [layout.zero_code(), number(scales)])
}

/// Calls for up to [`FEW`] rows; `None` where the weight is stored in another way, or gates and what they let through
/// come from different pieces of it.
pub(super) fn calls(site: Site<'_>, product: Product) -> Result<Option<Vec<Call>>, PlanError> {
    let Product { x, norm, weight, bias, then, out } = product;
    let (words, pieces) = site.pieces(weight)?;
    let columns = site.width(x);
    let Some([zero, scales]) = suits(words, columns) else { return Ok(None) };
    if matches!(then, Then::Gate { .. }) && pieces.len() > 1 {
        return Ok(None);
    }
    let rows_of_weight = site.plan.weight(weight).rows;
    let bias_buffer = site.optional_vector(bias, rows_of_weight)?;
    let norm_buffer = site.optional_vector(norm.map(|(weight, _)| weight), columns)?;
    let kernel = site.kernel(KernelOp::MatvecQ4)?;
    let has_lanes = kernel.overrides.contains(&"LANES");
    let threads = kernel.threads(site.caps);
    let (rows, out_width) = (site.rows(out), site.width(out));
    let (is_gated, is_added) =
        (matches!(then, Then::Gate { .. }), matches!(then, Then::Add { .. }));
    let fused = [norm.is_some(), is_gated, is_added].map(u32::from);
    let groups_of_row = columns / 32;
    let call = |piece: &Piece| {
        let (outputs, first, gate, up, activation, scale) = match then {
            Then::Write => (piece.rows, piece.first_row, 0, 0, 0, 1.0),
            Then::Add { scale } => (piece.rows, piece.first_row, 0, 0, 0, scale),
            Then::Gate { gate, up, activation } => {
                (out_width, 0, gate, up, activation_number(activation), 1.0)
            }
        };
        let per_team = if is_gated { 2 } else { 4 };
        let teams = outputs.div_ceil(per_team);
        // Without lanes a thread has rows to itself, and takes them once.
        let lanes = if has_lanes { lanes(threads, teams, groups_of_row) } else { 1 };
        let tile = groups_of_row.next_multiple_of(lanes).min(MOST_LANES);
        let per_pass = threads / lanes * per_team;
        let blocks = outputs.div_ceil(per_pass);
        let passes = if has_lanes { blocks.div_ceil(MOST_WORKGROUPS) } else { 1 };
        let groups = outputs.div_ceil(per_pass * passes);
        let eps = norm.map_or(0.0, |(_, eps)| eps);
        let args = [
            rows_of(site.rows(x)),
            rows_of(rows),
            columns,
            piece.rows,
            outputs,
            first,
            out_width,
            gate,
            up,
            bias.is_some().into(),
            activation,
            eps.to_bits(),
            scale.to_bits(),
            passes,
        ];
        let buffers = [
            Resource::Codes(*piece),
            Resource::Scales(*piece),
            Resource::Slot(x),
            norm_buffer,
            bias_buffer,
            Resource::Slot(out),
        ];
        let work = Work { applies: 1..=FEW, ..Work::per_row(rows, groups) };
        let call = site.call(KernelOp::MatvecQ4, &args, &buffers, work)?;
        let overrides = [zero, scales].into_iter().chain(fused).chain([lanes, tile]);
        Ok(Call { overrides: overrides.take(kernel.overrides.len()).collect(), ..call })
    };
    pieces.iter().map(call).collect::<Result<_, _>>().map(Some)
}

/// Threads for a row, of so many that take rows in teams: the fewest that leave enough workgroups, and no more than the
/// row has groups for.
fn lanes(threads: u32, teams: u32, groups_of_row: u32) -> u32 {
    let is_enough = |&(lanes, enough): &(u32, u32)| {
        lanes >= groups_of_row || teams.div_ceil(threads / lanes) >= enough
    };
    LANES.into_iter().find(is_enough).map_or(MOST_LANES, |(lanes, _)| lanes)
}
