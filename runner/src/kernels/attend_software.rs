//! Attention of any number of queries where threads run on a processor's cores.

use packlight_formats::rope::{Pairing, Rope};

use super::attend::{self, SEEN, Scores, Turned};
use super::matmul::FEW;
use super::{
    Call, Kernel, KernelOp, Need, PRELUDE, Read, ReadWrite, Resource, Site, Spread, Work, choose,
};
use crate::gpu::PlanError;
use crate::plan::{CacheId, Heads, Rows, SlotId};

/// MOST_ROWS and MOST_FOURS in attend_software.wgsl.
const MOST_ROWS: u32 = 4;
const MOST_FOURS: u32 = 64;
/// Positions that a thread has at least where several share those of a query, and the most that do.
const SHARE: u32 = 32;
const MOST_SHARES: u32 = 16;

pub(super) const ATTEND_SOFTWARE: Kernel = Kernel {
    name: "attend software",
    op: KernelOp::AttendSoftware,
    needs: &[Need::Software],
    entry: "attend",
    source: &[PRELUDE, SEEN, include_str!("attend_software.wgsl")],
    overrides: &["SPLIT", "ROWS"],
    args: &[
        "heads",
        "kv_heads",
        "head_dim",
        "offset",
        "stride",
        "window",
        "scale",
        "softcap",
        "share",
        "most_shares",
    ],
    buffers: &[Read, Read, Read, ReadWrite],
    workgroup_bytes: 0,
    invocations: 8,
};

pub(super) const TURN: Kernel = Kernel {
    name: "turn software",
    op: KernelOp::Turn,
    needs: &[Need::Software],
    entry: "turn",
    source: &[PRELUDE, include_str!("turn.wgsl")],
    overrides: &[],
    args: &[
        "heads", "kv_heads", "head_dim", "q_offset", "k_offset", "v_offset", "stride", "pairs",
        "step", "gap", "normed", "q_eps", "k_eps", "v_eps",
    ],
    buffers: &[Read, Read, Read, ReadWrite, ReadWrite, ReadWrite],
    workgroup_bytes: 0,
    invocations: 8,
};

/// The calls that attend; `None` where the device does not want them, or heads do not lie in fours or are too wide.
pub(super) fn attend(
    site: Site<'_>,
    q: Heads,
    cache: CacheId,
    scores: Scores,
    out: SlotId,
) -> Result<Option<Vec<Call>>, PlanError> {
    let Heads { slot, offset, heads, head_dim } = q;
    let stride = site.width(slot);
    let Some(kernel) = choose(KernelOp::AttendSoftware, site.caps).chosen else { return Ok(None) };
    if head_dim > 4 * MOST_FOURS || [head_dim, stride, offset].iter().any(|n| !n.is_multiple_of(4))
    {
        return Ok(None);
    }
    let kv_heads = site.plan.cache(cache).kv_heads;
    let [window, softcap] = scores.numbers();
    let scale = scores.scale.to_bits();
    let part = FEW * heads * (head_dim + 2);
    let most = attend::most_shares(site, part, MOST_SHARES);
    let args = [heads, kv_heads, head_dim, offset, stride, window, scale, softcap, SHARE, most];
    let call = |is_split: bool, rows: u32, out, work| {
        let buffers = [Resource::Slot(slot), Resource::Keys(cache), Resource::Values(cache), out];
        let call = site.call(KernelOp::AttendSoftware, &args, &buffers, work)?;
        Ok::<_, PlanError>(Call { overrides: vec![is_split.into(), rows], ..call })
    };
    let parts = Resource::Scratch { floats: most * part };
    let sharing = heads / kv_heads;
    let most_rows = (4 * MOST_FOURS / head_dim).min(MOST_ROWS);
    let rows = sharing.min(most_rows);
    let spread = Some(Spread { share: SHARE, most, window: scores.window });
    let few = Work::per_row(Rows::Tokens, kv_heads * sharing.div_ceil(rows));
    let few = Work { applies: 1..=FEW, spread, ..few };
    let tile = most_rows * kernel.threads(site.caps);
    let many = Work::per_row(Rows::Tokens, heads);
    let many = Work { tile, applies: FEW + 1..=u32::MAX, ..many };
    Ok(Some(vec![
        call(true, rows, parts, few)?,
        attend::merge(site, q, scores, [SHARE, most], parts, out, FEW)?,
        call(false, most_rows, Resource::Slot(out), many)?,
    ]))
}

/// The call that does what comes before.
pub(super) fn turn(
    site: Site<'_>,
    q: Heads,
    cache: CacheId,
    turned: Turned,
) -> Result<Call, PlanError> {
    let Heads { slot, offset, heads, head_dim } = q;
    let Turned { k, v, rope, .. } = turned;
    let kv_heads = site.plan.cache(cache).kv_heads;
    let (pairs, [step, gap]) = rope.map_or((0, [0; 2]), |rope| {
        let Rope { width, pairing, .. } = site.plan.ropes[rope.0];
        let steps = match pairing {
            Pairing::Halves => [1, width / 2],
            Pairing::Neighbours => [2, 1],
        };
        (width / 2, steps)
    });
    let [q_eps, k_eps, v_eps] = turned.eps();
    let args = [
        heads,
        kv_heads,
        head_dim,
        offset,
        k.offset,
        v.offset,
        site.width(slot),
        pairs,
        step,
        gap,
        turned.normed(),
        q_eps,
        k_eps,
        v_eps,
    ];
    let [q_norm, k_norm] = turned.weights(site, head_dim)?;
    let buffers = [
        rope.map_or(Resource::Nothing, Resource::Turns),
        q_norm,
        k_norm,
        Resource::Slot(slot),
        Resource::Keys(cache),
        Resource::Values(cache),
    ];
    let threads = site.threads(KernelOp::Turn)?;
    let work = Work::per_row(Rows::Tokens, (heads + 2 * kv_heads).div_ceil(threads));
    site.call(KernelOp::Turn, &args, &buffers, work)
}
