//! Softmax attention over the cache: a workgroup a query, or for few queries several that join their parts.

use packlight_formats::rope::{Pairing, Rope};

use super::attend_software;
use super::matmul::FEW;
use super::{Call, Kernel, KernelOp, PRELUDE, Read, ReadWrite, Resource, Site, Spread, Work};
use crate::gpu::PlanError;
use crate::plan::{CacheId, Heads, RopeIndex, Rows, SlotId, WeightId};

/// WIDEST in attend.wgsl.
const WIDEST_HEAD: u32 = 512;
pub(super) const SEEN: &str = include_str!("seen.wgsl");
const ARGS: &str = include_str!("attend_args.wgsl");
/// Positions that a workgroup of the split kernel has at least.
const SHARE: u32 = 64;
/// The most workgroups that share the positions of a query.
const MOST_SHARES: u32 = 32;

pub(super) const ATTEND: Kernel = Kernel {
    name: "attend",
    op: KernelOp::Attend,
    needs: &[],
    entry: "attend",
    source: &[PRELUDE, SEEN, ARGS, include_str!("attend.wgsl")],
    overrides: &[],
    args: &["heads", "kv_heads", "head_dim", "offset", "stride", "window", "scale", "softcap"],
    buffers: &[Read, Read, Read, ReadWrite],
    workgroup_bytes: (512 + 2 * 128) * 4,
    invocations: 128,
};

/// QUERIES in attend_tiles.wgsl, and the widest heads that it sums.
const QUERIES: u32 = 32;
const WIDEST_IN_TILES: u32 = 256;

pub(super) const ATTEND_TILES: Kernel = Kernel {
    name: "attend tiles",
    op: KernelOp::AttendTiles,
    source: &[PRELUDE, SEEN, ARGS, include_str!("attend_tiles.wgsl")],
    workgroup_bytes: 2 * 32 * 9 * 16 + 32 * 33 * 4 + 256 * 4,
    invocations: 256,
    ..ATTEND
};

pub(super) const ATTEND_SPLIT: Kernel = Kernel {
    name: "attend split",
    op: KernelOp::AttendSplit,
    needs: &[],
    entry: "attend",
    source: &[PRELUDE, SEEN, include_str!("attend_split.wgsl")],
    overrides: &["TURN", "WIDTH"],
    args: &[
        "heads",
        "kv_heads",
        "head_dim",
        "q_offset",
        "k_offset",
        "v_offset",
        "stride",
        "window",
        "scale",
        "softcap",
        "share",
        "most_shares",
        "pairs",
        "neighbours",
        "normed",
        "q_eps",
        "k_eps",
        "v_eps",
    ],
    buffers: &[Read, Read, Read, Read, ReadWrite, ReadWrite, ReadWrite],
    workgroup_bytes: 5 * WIDEST_HEAD * 4 + 64 * (4 + 1) * 4 + 128 * (4 + 1) * 4 + 8 * 4,
    invocations: 128,
};

pub(super) const ATTEND_MERGE: Kernel = Kernel {
    name: "attend merge",
    op: KernelOp::AttendMerge,
    needs: &[],
    entry: "merge",
    source: &[PRELUDE, SEEN, include_str!("attend_merge.wgsl")],
    overrides: &[],
    args: &["heads", "head_dim", "window", "share", "most_shares"],
    buffers: &[Read, ReadWrite],
    workgroup_bytes: 0,
    invocations: 64,
};

/// Which keys are scored, and how.
#[derive(Clone, Copy)]
pub(super) struct Scores {
    pub(super) scale: f32,
    pub(super) softcap: Option<f32>,
    pub(super) window: Option<u32>,
}

impl Scores {
    /// Window and softcap as kernels take them. None is written as 0: a window of 0 would hide even the query's own
    /// position, a cap of 0 every difference.
    pub(super) fn numbers(self) -> [u32; 2] {
        [self.window.unwrap_or(0), self.softcap.unwrap_or(0.0).to_bits()]
    }
}

/// What is done with queries, keys and values, which one slot has, before a token attends.
#[derive(Clone, Copy)]
pub(super) struct Turned {
    pub(super) k: Heads,
    pub(super) v: Heads,
    pub(super) rope: Option<RopeIndex>,
    pub(super) q_norm: Option<(WeightId, f32)>,
    pub(super) k_norm: Option<(WeightId, f32)>,
    pub(super) v_eps: Option<f32>,
}

impl Turned {
    /// Whether queries, keys and values are normed: bits 1, 2 and 4.
    pub(super) fn normed(&self) -> u32 {
        let normed = [self.q_norm.is_some(), self.k_norm.is_some(), self.v_eps.is_some()];
        (0..).zip(normed).map(|(bit, is)| u32::from(is) << bit).sum()
    }

    /// Bits of the epsilons of queries, keys and values.
    pub(super) fn eps(&self) -> [u32; 3] {
        let eps = |norm: Option<(WeightId, f32)>| norm.map(|(_, eps)| eps);
        [eps(self.q_norm), eps(self.k_norm), self.v_eps].map(|eps| eps.unwrap_or(0.0).to_bits())
    }

    /// What queries and keys are multiplied by when they are normed.
    pub(super) fn weights(
        &self,
        site: Site<'_>,
        head_dim: u32,
    ) -> Result<[Resource; 2], PlanError> {
        let weight = |norm: Option<(WeightId, f32)>| {
            site.optional_vector(norm.map(|(weight, _)| weight), head_dim)
        };
        Ok([weight(self.q_norm)?, weight(self.k_norm)?])
    }
}

/// All kernels that a step needs; the live row count decides which of them run.
pub(super) fn calls(
    site: Site<'_>,
    q: Heads,
    cache: CacheId,
    scores: Scores,
    out: SlotId,
) -> Result<Vec<Call>, PlanError> {
    let Heads { slot, offset, heads, head_dim } = q;
    if head_dim > WIDEST_HEAD {
        let (place, widest) = (site.place.to_owned(), WIDEST_HEAD);
        return Err(PlanError::HeadDim { place, head_dim, widest });
    }
    if let Some(calls) = attend_software::attend(site, q, cache, scores, out)? {
        return Ok(calls);
    }
    let kv_heads = site.plan.cache(cache).kv_heads;
    let stride = site.width(slot);
    let [window, softcap] = scores.numbers();
    let args = [heads, kv_heads, head_dim, offset, stride, window, scores.scale.to_bits(), softcap];
    let buffers =
        [Resource::Slot(slot), Resource::Keys(cache), Resource::Values(cache), Resource::Slot(out)];
    let work = Work::per_row(Rows::Tokens, heads);
    let call = |op, work| site.call(op, &args, &buffers, work);
    let Some(mut calls) = split(site, q, cache, scores, None, out)? else {
        return Ok(vec![call(KernelOp::Attend, work)?]);
    };
    let many = Work { applies: FEW + 1..=u32::MAX, ..work };
    // Its threads are a square.
    let is_square = site.threads(KernelOp::AttendTiles)? == ATTEND_TILES.invocations;
    calls.push(if is_square && head_dim <= WIDEST_IN_TILES {
        call(KernelOp::AttendTiles, Work { tile: QUERIES, ..many })?
    } else {
        call(KernelOp::Attend, many)?
    });
    Ok(calls)
}

/// The calls that do it together with what comes before; `None` where they cannot.
pub(super) fn turn_and_attend(
    site: Site<'_>,
    q: Heads,
    cache: CacheId,
    scores: Scores,
    turned: Turned,
    out: SlotId,
) -> Result<Option<Vec<Call>>, PlanError> {
    if let Some(mut calls) = attend_software::attend(site, q, cache, scores, out)? {
        calls.insert(0, attend_software::turn(site, q, cache, turned)?);
        return Ok(Some(calls));
    }
    split(site, q, cache, scores, Some(turned), out)
}

/// The calls for few queries, or with `turned` for one; `None` where their heads do not lie in fours.
fn split(
    site: Site<'_>,
    q: Heads,
    cache: CacheId,
    scores: Scores,
    turned: Option<Turned>,
    out: SlotId,
) -> Result<Option<Vec<Call>>, PlanError> {
    let Heads { slot, offset, heads, head_dim } = q;
    let stride = site.width(slot);
    let offsets = turned.map_or([0; 2], |turned| [turned.k.offset, turned.v.offset]);
    // The kernel norms values with a thread for each four of them.
    let is_wide = site.threads(KernelOp::AttendSplit)? < head_dim / 4;
    if is_wide && turned.is_some_and(|turned| turned.v_eps.is_some()) {
        return Ok(None);
    }
    if [head_dim, stride, offset].iter().chain(&offsets).any(|n| !n.is_multiple_of(4)) {
        return Ok(None);
    }
    let kv_heads = site.plan.cache(cache).kv_heads;
    let [window, softcap] = scores.numbers();
    let rope = turned.and_then(|turned| turned.rope);
    let (pairs, neighbours) = rope.map_or((0, 0), |rope| {
        let Rope { width, pairing, .. } = site.plan.ropes[rope.0];
        (width / 2, u32::from(pairing == Pairing::Neighbours))
    });
    let normed = turned.map_or(0, |turned| turned.normed());
    let [q_eps, k_eps, v_eps] = turned.map_or([0; 3], |turned| turned.eps());
    let [q_norm, k_norm] = match turned {
        Some(turned) => turned.weights(site, head_dim)?,
        None => [Resource::Nothing; 2],
    };
    let most_rows = if turned.is_some() { 1 } else { FEW };
    let part = most_rows * heads * (head_dim + 2);
    let most = most_shares(site, part, MOST_SHARES);
    let args = [
        heads,
        kv_heads,
        head_dim,
        offset,
        offsets[0],
        offsets[1],
        stride,
        window,
        scores.scale.to_bits(),
        softcap,
        SHARE,
        most,
        pairs,
        neighbours,
        normed,
        q_eps,
        k_eps,
        v_eps,
    ];
    let parts = Resource::Scratch { floats: most * part };
    let buffers = [
        Resource::Slot(slot),
        rope.map_or(Resource::Nothing, Resource::Turns),
        q_norm,
        k_norm,
        Resource::Keys(cache),
        Resource::Values(cache),
        parts,
    ];
    let work = Work { applies: 1..=most_rows, ..Work::per_row(Rows::Tokens, heads) };
    let spread = Some(Spread { share: SHARE, most, window: scores.window });
    let spread = Work { spread, ..work };
    let split = site.call(KernelOp::AttendSplit, &args, &buffers, spread)?;
    let split = Call { overrides: vec![turned.is_some().into(), head_dim / 4], ..split };
    let merge = merge(site, q, scores, [SHARE, most], parts, out, most_rows)?;
    Ok(Some(vec![split, merge]))
}

/// How many may share what a query sees, so that what they leave, `part` floats each, can be bound.
pub(super) fn most_shares(site: Site<'_>, part: u32, most: u32) -> u32 {
    let fit = site.caps.binding_bytes / 4 / u64::from(part);
    u32::try_from(fit).unwrap_or(u32::MAX).clamp(1, most)
}

/// The call that joins what several have left for up to `most_rows` queries.
pub(super) fn merge(
    site: Site<'_>,
    q: Heads,
    scores: Scores,
    [share, most]: [u32; 2],
    parts: Resource,
    out: SlotId,
    most_rows: u32,
) -> Result<Call, PlanError> {
    let [window, _] = scores.numbers();
    let args = [q.heads, q.head_dim, window, share, most];
    let work = Work { applies: 1..=most_rows, ..Work::per_row(Rows::Tokens, q.heads) };
    site.call(KernelOp::AttendMerge, &args, &[parts, Resource::Slot(out)], work)
}
