//! Steps that one kernel does together while there are few rows: a dispatch then costs more than its arithmetic.
//!
//! The plan stays what it is, and the calls of single steps stay beside the fused ones: they serve more rows, and those
//! who look at every step ([`crate::gpu::GpuExecutor::step`]).

use super::attend::{self, Scores, Turned};
use super::matvec_q4::{self, Product, Then};
use super::norm;
use super::{Access, Call, Resource, Site};
use crate::gpu::{Caps, Placement, PlanError};
use crate::plan::{Heads, Left, Op, Plan, RopeIndex, WeightId};

/// What fuses. At every step the first row is taken whose pattern follows there and whose `lower` agrees.
pub const FUSIONS: &[Fusion] = &[
    Fusion {
        name: "norm, matmul, gate",
        steps: &[One(Kind::RmsNorm), One(Kind::Matmul), One(Kind::Gate)],
        lower: product,
    },
    Fusion { name: "matmul, gate", steps: &[One(Kind::Matmul), One(Kind::Gate)], lower: product },
    Fusion { name: "matmul, add", steps: &[One(Kind::Matmul), One(Kind::Add)], lower: product },
    Fusion {
        name: "norm, matmuls",
        steps: &[One(Kind::RmsNorm), One(Kind::Matmul), One(Kind::Matmul), Maybe(Kind::Matmul)],
        lower: products,
    },
    Fusion {
        name: "norm, matmul",
        steps: &[Maybe(Kind::Copy), One(Kind::RmsNorm), One(Kind::Matmul)],
        lower: product,
    },
    Fusion { name: "norm, add", steps: &[One(Kind::RmsNorm), One(Kind::Add)], lower: norm_add },
    Fusion {
        name: "norms, ropes, store, attend",
        steps: &[
            Maybe(Kind::HeadNorm),
            Maybe(Kind::Rope),
            Maybe(Kind::HeadNorm),
            Maybe(Kind::HeadNorm),
            Maybe(Kind::Rope),
            One(Kind::StoreKv),
            One(Kind::Attend),
        ],
        lower: turn_and_attend,
    },
];

/// A row of the table.
#[derive(Debug)]
pub struct Fusion {
    pub name: &'static str,
    pub steps: &'static [Term],
    /// The calls that do all of these steps; `None` where they cannot.
    lower: Lower,
}

type Lower = fn(Site<'_>, &[Op]) -> Result<Option<Vec<Call>>, PlanError>;

/// A step of a pattern.
#[derive(Clone, Copy, Debug)]
pub enum Term {
    One(Kind),
    /// It may be missing.
    Maybe(Kind),
}

/// The operations that fuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    RmsNorm,
    HeadNorm,
    Matmul,
    Rope,
    StoreKv,
    Attend,
    Gate,
    Add,
    Copy,
}

use Term::{Maybe, One};

impl Kind {
    fn is(self, op: &Op) -> bool {
        match self {
            Self::RmsNorm => matches!(op, Op::RmsNorm { .. }),
            Self::HeadNorm => matches!(op, Op::HeadNorm { .. }),
            Self::Matmul => matches!(op, Op::Matmul { .. }),
            Self::Rope => matches!(op, Op::Rope { .. }),
            Self::StoreKv => matches!(op, Op::StoreKv { .. }),
            Self::Attend => matches!(op, Op::Attend { .. }),
            Self::Gate => matches!(op, Op::Gate { .. }),
            Self::Add => matches!(op, Op::Add { .. }),
            Self::Copy => matches!(op, Op::Copy { .. }),
        }
    }
}

impl Fusion {
    /// How many of these operations, from the first on, its pattern takes.
    fn matches(&self, ops: &[Op]) -> Option<usize> {
        let mut taken = 0;
        for term in self.steps {
            let (kind, needed) = match *term {
                One(kind) => (kind, true),
                Maybe(kind) => (kind, false),
            };
            match ops.get(taken) {
                Some(op) if kind.is(op) => taken += 1,
                _ if needed => return None,
                _ => {}
            }
        }
        Some(taken)
    }
}

/// Puts fused calls among the `calls` of a plan's steps, which yield to them.
pub(super) fn fuse(
    plan: &Plan,
    placement: &Placement,
    caps: &Caps,
    calls: &mut Vec<Call>,
) -> Result<(), PlanError> {
    let ops: Vec<Op> = plan.steps.iter().map(|step| step.op.clone()).collect();
    let mut first = 0;
    while first < ops.len() {
        let mut taken = 1;
        for fusion in FUSIONS {
            let Some(count) = fusion.matches(&ops[first..]) else { continue };
            let steps = first..first + count;
            let place = &plan.steps[steps.end - 1].place;
            let site = Site { plan, placement, caps, step: steps.end - 1, place };
            let Some(mut fused) = (fusion.lower)(site, &ops[steps.clone()])? else { continue };
            if !leaves_nothing_behind(plan, &ops[first..], count, &fused) {
                continue;
            }
            let rows = fused[0].work.rows;
            let mut parts = calls.iter().filter(|call| steps.contains(&call.steps.start));
            if !parts.all(|call| call.work.rows == rows) {
                continue;
            }
            for call in calls.iter_mut().filter(|call| steps.contains(&call.steps.start)) {
                call.yields_to = Some(fused[0].work.applies.clone());
            }
            for call in &mut fused {
                call.steps = steps.clone();
            }
            let at = calls.iter().rposition(|call| steps.contains(&call.steps.start));
            let at = at.map_or(calls.len(), |last| last + 1);
            calls.splice(at..at, fused);
            taken = count;
            break;
        }
        first += taken;
    }
    Ok(())
}

/// Whether nothing after the first `count` operations reads a slot that they leave and `fused` does not write.
fn leaves_nothing_behind(plan: &Plan, ops: &[Op], count: usize, fused: &[Call]) -> bool {
    let (window, after) = ops.split_at(count);
    let writes = |slot| {
        let written = |call: &Call| {
            let mut bound = call.buffers.iter().zip(call.kernel.buffers);
            bound.any(|bound| bound == (&Resource::Slot(slot), &Access::ReadWrite))
        };
        fused.iter().any(written)
    };
    let is_read = |slot| {
        let mut uses = after.iter().filter_map(|op| {
            let is_read = op.reads().contains(&slot);
            (is_read || op.overwrites().contains(&slot)).then_some(is_read)
        });
        uses.next().unwrap_or(slot == plan.logits)
    };
    window.iter().all(|op| match op.leaves() {
        Left::Slot(slot) => writes(slot) || !is_read(slot),
        // They are stored all the same.
        Left::Cache(_) | Left::History(_) => true,
    })
}

/// A matmul with the norm before it and the gate or sum after it.
fn product(site: Site<'_>, ops: &[Op]) -> Result<Option<Vec<Call>>, PlanError> {
    let mut copied = None;
    let mut normed = None;
    let mut found: Option<Product> = None;
    for op in ops {
        match (op.clone(), found) {
            (Op::Copy { x, out }, None) => copied = Some((x, out)),
            (Op::RmsNorm { x, weight, eps, out }, None) => {
                let x = match copied {
                    Some((from, to)) if to == x => from,
                    Some(_) => return Ok(None),
                    None => x,
                };
                normed = Some((x, (weight, eps), out));
            }
            (Op::Matmul { x, weight, bias, out }, None) => {
                let (x, norm) = match normed {
                    Some((from, norm, to)) if to == x => (from, Some(norm)),
                    Some(_) => return Ok(None),
                    None => (x, None),
                };
                found = Some(Product { x, norm, weight, bias, then: Then::Write, out });
            }
            (Op::Gate { gate, up, activation, out }, Some(product))
                if gate.slot == product.out && up.slot == product.out =>
            {
                let then = Then::Gate { gate: gate.offset, up: up.offset, activation };
                found = Some(Product { then, out, ..product });
            }
            (Op::Add { x, y, scale }, Some(product)) if y == product.out && x != product.x => {
                let then = Then::Add { scale: scale.unwrap_or(1.0) };
                found = Some(Product { then, out: x, ..product });
            }
            _ => return Ok(None),
        }
    }
    found.map_or(Ok(None), |product| matvec_q4::calls(site, product))
}

/// Several matmuls of one normed slot.
fn products(site: Site<'_>, ops: &[Op]) -> Result<Option<Vec<Call>>, PlanError> {
    let [norm, matmuls @ ..] = ops else { return Ok(None) };
    let mut calls = Vec::new();
    for matmul in matmuls {
        match product(site, &[norm.clone(), matmul.clone()])? {
            Some(more) => calls.extend(more),
            None => return Ok(None),
        }
    }
    Ok(Some(calls))
}

fn norm_add(site: Site<'_>, ops: &[Op]) -> Result<Option<Vec<Call>>, PlanError> {
    match *ops {
        [Op::RmsNorm { x: from, weight, eps, out }, Op::Add { x, y, scale }]
            if y == out && x != from =>
        {
            let call = norm::rms_norm_add(site, (from, weight, eps), x, scale.unwrap_or(1.0))?;
            Ok(Some(vec![call]))
        }
        _ => Ok(None),
    }
}

/// A token's queries, keys and values, from their projection on.
fn turn_and_attend(site: Site<'_>, ops: &[Op]) -> Result<Option<Vec<Call>>, PlanError> {
    let [
        steps @ ..,
        Op::StoreKv { k, v, cache },
        Op::Attend { q, cache: read, scale, softcap, window, out },
    ] = ops
    else {
        return Ok(None);
    };
    if read != cache || k.slot != q.slot || v.slot != q.slot || k.head_dim != q.head_dim {
        return Ok(None);
    }
    // Of each of them at most one norm and one rope, in that order.
    let mut norms: [Option<(Option<WeightId>, f32)>; 3] = [None; 3];
    let mut ropes: [Option<RopeIndex>; 3] = [None; 3];
    let which = |heads: &Heads| [*q, *k, *v].iter().position(|known| known == heads);
    for step in steps {
        match step {
            Op::HeadNorm { x, weight, eps } => match which(x) {
                Some(i) if norms[i].is_none() && ropes[i].is_none() => {
                    norms[i] = Some((*weight, *eps));
                }
                _ => return Ok(None),
            },
            Op::Rope { x, rope } => match which(x) {
                Some(i) if ropes[i].is_none() => ropes[i] = Some(*rope),
                _ => return Ok(None),
            },
            _ => return Ok(None),
        }
    }
    let [q_norm, k_norm, v_norm] = norms;
    let weighted = |norm: Option<(Option<WeightId>, f32)>| match norm {
        None => Some(None),
        Some((Some(weight), eps)) => Some(Some((weight, eps))),
        Some((None, _)) => None,
    };
    let (Some(q_norm), Some(k_norm)) = (weighted(q_norm), weighted(k_norm)) else {
        return Ok(None);
    };
    let v_eps = match v_norm {
        None => None,
        Some((None, eps)) => Some(eps),
        Some((Some(_), _)) => return Ok(None),
    };
    if ropes[0] != ropes[1] || ropes[2].is_some() {
        return Ok(None);
    }
    let turned = Turned { k: *k, v: *v, rope: ropes[0], q_norm, k_norm, v_eps };
    let scores = Scores { scale: *scale, softcap: *softcap, window: *window };
    attend::turn_and_attend(site, *q, *cache, scores, turned, *out)
}
