//! What runs on the GPU: one WGSL file an operation, beside the Rust that says what it is given.
//!
//! This module knows no wgpu. [`lower`] turns a plan and its placement into [`Call`]s, data that `gpu` makes pipelines
//! and bind groups of. Every kernel binds `live` at 0, its `args` at 1 and its buffers from 2 on.

mod argmax;
mod attend;
mod attend_software;
mod choice;
mod conv;
mod elementwise;
mod experts;
mod fusion;
mod gather;
mod grid;
mod matmul;
mod matmul_coop;
mod matmul_software;
mod matvec_q4;
mod norm;
mod rope;
mod store_kv;
#[cfg(test)]
mod tests;
mod work;

use std::ops::{Range, RangeInclusive};

pub use choice::{Choice, Need, Refusal, choices, choose};
pub use fusion::{FUSIONS, Fusion, Kind, Term};
pub use grid::{GridError, fold};
pub use work::{Spread, Work};

use packlight_formats::quant::Order;

use crate::gpu::{Caps, Floats, Piece, Placed, Placement, PlanError, Words};
use crate::plan::{CacheId, HistoryId, Op, Plan, RopeIndex, Rows, SlotId, WeightId};

/// Every kernel. Where an operation has several, the first that a device can and may use is taken, so the best come
/// first.
pub const KERNELS: &[Kernel] = &[
    gather::GATHER,
    gather::GATHER_PLAIN,
    norm::RMS_NORM_SUBGROUPS,
    norm::RMS_NORM,
    norm::NORM_ADD_SUBGROUPS,
    norm::NORM_ADD,
    norm::HEAD_NORM_SUBGROUPS,
    norm::HEAD_NORM,
    matvec_q4::MATVEC_Q4_SOFTWARE,
    matvec_q4::MATVEC_Q4_SUBGROUPS,
    matvec_q4::MATVEC_Q4,
    matmul::MATVEC_SUBGROUPS,
    matmul::MATVEC,
    matmul_software::MATMUL_SOFTWARE,
    matmul_coop::HALVE,
    matmul_coop::MATMUL_COOP,
    matmul::MATMUL_F16,
    matmul::MATMUL,
    matmul::MATVEC_PLAIN_SUBGROUPS,
    matmul::MATVEC_PLAIN,
    matmul::MATMUL_PLAIN,
    rope::ROPE,
    store_kv::STORE_KV,
    attend_software::TURN,
    attend_software::ATTEND_SOFTWARE,
    attend::ATTEND_SPLIT,
    attend::ATTEND_MERGE,
    attend::ATTEND_TILES,
    attend::ATTEND,
    experts::ROUTE,
    experts::EXPERT_MATMUL,
    experts::EXPERT_MATMUL_PLAIN,
    experts::MIX,
    conv::STORE_PRODUCT,
    conv::CONVOLVE,
    elementwise::GATE,
    elementwise::ADD,
    elementwise::SCALE,
    elementwise::SOFTCAP,
    elementwise::COPY,
    argmax::ARGMAX_PARTS,
    argmax::ARGMAX,
];

const PRELUDE: &str = include_str!("prelude.wgsl");
const HALVES: &str = include_str!("halves.wgsl");
const GROUPED: &str = include_str!("grouped.wgsl");
/// The override constants of grouped.wgsl.
const GROUPED_OVERRIDES: &[&str] =
    &["BITS", "GROUP", "ZERO", "HIGH_FIRST", "TRANSPOSED", "SCALES", "WHOLE"];
const PLAIN: &str = include_str!("plain.wgsl");
/// The override constants of plain.wgsl.
const PLAIN_OVERRIDES: &[&str] = &["VALUES", "ODD"];

/// One row of the table of kernels.
#[derive(Debug, PartialEq, Eq)]
pub struct Kernel {
    /// No two are called the same.
    pub name: &'static str,
    /// What it computes.
    pub op: KernelOp,
    /// What it needs besides the limits below.
    pub needs: &'static [Need],
    pub entry: &'static str,
    /// WGSL, to be concatenated.
    pub source: &'static [&'static str],
    /// Override constants that a call must set, besides THREADS of prelude.wgsl.
    pub overrides: &'static [&'static str],
    /// Fields of the uniform `args`, four bytes each, in order.
    pub args: &'static [&'static str],
    /// Storage buffers, from binding 2 on.
    pub buffers: &'static [Access],
    /// Bytes of `var<workgroup>`, with that many threads.
    pub workgroup_bytes: u32,
    /// Threads of a workgroup where the device allows so many ([`Kernel::threads`]).
    pub invocations: u32,
}

/// What kernels compute: the plan's operations, some of them in parts, some in kinds for few and many tokens or for
/// weights of one layout, and some together ([`FUSIONS`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelOp {
    Gather,
    GatherPlain,
    RmsNorm,
    NormAdd,
    HeadNorm,
    MatvecQ4,
    Matvec,
    MatmulSoftware,
    Halve,
    MatmulCoop,
    Matmul,
    MatvecPlain,
    MatmulPlain,
    Rope,
    StoreKv,
    Turn,
    AttendSoftware,
    AttendSplit,
    AttendMerge,
    AttendTiles,
    Attend,
    Route,
    ExpertMatmul,
    ExpertMatmulPlain,
    Mix,
    StoreProduct,
    Convolve,
    Gate,
    Add,
    Scale,
    Softcap,
    Copy,
    ArgmaxParts,
    Argmax,
}

/// How a kernel uses a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    ReadWrite,
}

use Access::{Read, ReadWrite};

impl KernelOp {
    /// Whether others do its work where no kernel of it fits.
    pub fn is_optional(self) -> bool {
        matches!(
            self,
            Self::MatmulSoftware
                | Self::Halve
                | Self::MatmulCoop
                | Self::Turn
                | Self::AttendSoftware
        )
    }

    /// That of the kernel which needs nothing, the last of its kind.
    pub fn name(self) -> &'static str {
        KERNELS.iter().rfind(|kernel| kernel.op == self).map_or("unknown", |kernel| kernel.name)
    }
}

/// A kernel and everything that one use of it in a plan is given.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Which steps of the plan it does: one, or those that are fused.
    pub steps: Range<usize>,
    /// The row counts for which a fused call does its work.
    pub yields_to: Option<RangeInclusive<u32>>,
    /// Where in the model that is.
    pub place: String,
    pub kernel: &'static Kernel,
    /// Threads of a workgroup.
    pub threads: u32,
    /// In the order of [`Kernel::overrides`].
    pub overrides: Vec<u32>,
    /// In the order of [`Kernel::args`]; floats as their bits.
    pub args: Vec<u32>,
    /// In the order of [`Kernel::buffers`].
    pub buffers: Vec<Resource>,
    pub work: Work,
}

/// What a binding is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// `[T, width]`.
    Slot(SlotId),
    Codes(Piece),
    Scales(Piece),
    /// `[rows]` f32.
    Vector(WeightId),
    Keys(CacheId),
    Values(CacheId),
    /// `[positions, width]`.
    History(HistoryId),
    /// `[tokens, width / 2]` cosines and sines.
    Turns(RopeIndex),
    /// `[tokens]` ids, and those that follow.
    Tokens,
    /// Values that one call leaves for the next.
    Scratch {
        floats: u32,
    },
    /// `[tokens, columns]` f16 for the next calls.
    Halves {
        columns: u32,
    },
    /// `[tokens]`: what the rows of those were multiplied by.
    Factors,
    /// A binding that the kernel does not read this time.
    Nothing,
}

/// The calls of one pass over a plan, in order: of every step, and of those that are fused.
pub fn lower(plan: &Plan, placement: &Placement, caps: &Caps) -> Result<Vec<Call>, PlanError> {
    let mut calls = Vec::new();
    for (index, step) in plan.steps.iter().enumerate() {
        let site = Site { plan, placement, caps, step: index, place: &step.place };
        match step.op {
            Op::Gather { table, out } => calls.extend(gather::calls(site, table, out)?),
            // Done before the first call.
            Op::HostGather { .. } => {}
            Op::RmsNorm { x, weight, eps, out } => {
                calls.push(norm::rms_norm(site, x, weight, eps, out)?);
            }
            Op::HeadNorm { x, weight, eps } => calls.push(norm::head_norm(site, x, weight, eps)?),
            Op::Matmul { x, weight, bias, out } => {
                calls.extend(matmul::calls(site, x, weight, bias, out)?);
            }
            Op::Rope { x, rope } => calls.push(rope::call(site, x, rope)?),
            Op::StoreKv { k, v, cache } => calls.push(store_kv::call(site, k, v, cache)?),
            Op::Attend { q, cache, scale, softcap, window, out } => {
                let scores = attend::Scores { scale, softcap, window };
                calls.extend(attend::calls(site, q, cache, scores, out)?);
            }
            Op::Route { logits, normalised, experts, shares } => {
                calls.push(experts::route(site, logits, normalised, [experts, shares])?);
            }
            Op::ExpertMatmul { x, experts, weight, bias, out } => {
                calls.extend(experts::matmul(site, x, experts, (weight, bias), out)?);
            }
            Op::Mix { x, shares, out } => calls.push(experts::mix(site, x, shares, out)?),
            Op::StoreProduct { x, by, history } => calls.push(conv::store(site, x, by, history)?),
            Op::Convolve { history, kernel, bias, gate, out } => {
                calls.push(conv::convolve(site, history, kernel, bias, gate, out)?);
            }
            Op::Gate { gate, up, activation, out } => {
                calls.push(elementwise::gate(site, gate, up, activation, out)?);
            }
            Op::Add { x, y, scale } => calls.push(elementwise::add(site, x, y, scale)?),
            Op::Scale { x, by } => calls.push(elementwise::scale(site, x, by)?),
            Op::Softcap { x, cap } => calls.push(elementwise::softcap(site, x, cap)?),
            Op::Copy { x, out } => calls.push(elementwise::copy(site, x, out)?),
        }
    }
    fusion::fuse(plan, placement, caps, &mut calls)?;
    Ok(calls)
}

/// The calls that take the most likely token from the logits.
pub fn argmax(plan: &Plan, placement: &Placement, caps: &Caps) -> Result<Vec<Call>, PlanError> {
    let site = Site { plan, placement, caps, step: plan.steps.len(), place: "argmax" };
    argmax::calls(site, plan.logits)
}

/// What lowering a step can look at.
#[derive(Clone, Copy)]
struct Site<'a> {
    plan: &'a Plan,
    placement: &'a Placement,
    caps: &'a Caps,
    step: usize,
    place: &'a str,
}

impl<'a> Site<'a> {
    fn kernel(self, op: KernelOp) -> Result<&'static Kernel, PlanError> {
        let Choice { chosen, refused, .. } = choose(op, self.caps);
        chosen.ok_or_else(|| {
            let why = refused.last().map(|(_, refusal)| refusal.to_string()).unwrap_or_default();
            PlanError::NoKernel { op: op.name(), why }
        })
    }

    /// Threads of the workgroups that an operation gets.
    fn threads(self, op: KernelOp) -> Result<u32, PlanError> {
        Ok(self.kernel(op)?.threads(self.caps))
    }

    /// One thread a column, as `cell` in prelude.wgsl unfolds it.
    fn per_column(self, rows: Rows, width: u32) -> Work {
        Work::per_row(rows, width.div_ceil(elementwise::COPY.threads(self.caps)))
    }

    /// A call without override constants.
    fn call(
        self,
        op: KernelOp,
        args: &[u32],
        buffers: &[Resource],
        work: Work,
    ) -> Result<Call, PlanError> {
        let kernel = self.kernel(op)?;
        Ok(Call {
            steps: self.step..self.step + 1,
            yields_to: None,
            place: self.place.into(),
            kernel,
            threads: kernel.threads(self.caps),
            overrides: Vec::new(),
            args: args.to_vec(),
            buffers: buffers.to_vec(),
            work,
        })
    }

    fn width(self, slot: SlotId) -> u32 {
        self.plan.slot(slot).width
    }

    fn rows(self, slot: SlotId) -> Rows {
        self.plan.slot(slot).rows
    }

    /// The pieces of a matrix.
    fn pieces(self, weight: WeightId) -> Result<(Words, &'a [Piece]), PlanError> {
        match &self.placement.weights[weight.0] {
            Placed::Matrix { words, pieces } => Ok((*words, pieces)),
            Placed::Vector(_) | Placed::Host => Err(PlanError::Weight {
                weight: self.plan.weight(weight).name.clone(),
                why: "a matrix on the device is needed here".into(),
            }),
        }
    }

    /// A vector, checked to be one of that length.
    fn vector(self, weight: WeightId, length: u32) -> Result<Resource, PlanError> {
        let found = self.plan.weight(weight);
        match &self.placement.weights[weight.0] {
            Placed::Vector(_) if found.rows == length => Ok(Resource::Vector(weight)),
            _ => Err(PlanError::Weight {
                weight: found.name.clone(),
                why: format!("a vector of {length} values is needed here"),
            }),
        }
    }

    /// The same where there may be none.
    fn optional_vector(self, weight: Option<WeightId>, length: u32) -> Result<Resource, PlanError> {
        weight.map_or(Ok(Resource::Nothing), |weight| self.vector(weight, length))
    }
}

/// What `live_rows` in prelude.wgsl takes.
fn rows_of(rows: Rows) -> u32 {
    match rows {
        Rows::Tokens | Rows::PerToken(1) => 0,
        Rows::Outputs => 1,
        Rows::PerToken(count) => count,
    }
}

/// The values of [`GROUPED_OVERRIDES`] or [`PLAIN_OVERRIDES`] for rows of so many columns.
fn overrides(words: Words, columns: u32) -> Vec<u32> {
    match words {
        Words::Grouped { layout, order, scales } => {
            let whole = columns.is_multiple_of(layout.group)
                && layout.group.is_multiple_of(layout.codes_per_word());
            let (high_first, transposed) = (layout.high_first(), order == Order::Kn);
            let [high_first, transposed, whole] = [high_first, transposed, whole].map(u32::from);
            let zero = layout.zero_code();
            vec![layout.bits, layout.group, zero, high_first, transposed, number(scales), whole]
        }
        Words::Plain { values } => vec![number(values), columns % 2],
    }
}

/// How grouped.wgsl and plain.wgsl call a type.
fn number(floats: Floats) -> u32 {
    match floats {
        Floats::Float16 => 0,
        Floats::Bfloat16 => 1,
        Floats::Float32 => 2,
    }
}
