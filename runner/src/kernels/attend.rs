//! Softmax attention over the cache.

use super::{Call, Kernel, KernelOp, PRELUDE, Read, ReadWrite, Resource, Site, Work};
use crate::gpu::PlanError;
use crate::plan::{CacheId, Heads, Rows, SlotId};

/// WIDEST in attend.wgsl.
const WIDEST_HEAD: u32 = 512;

pub(super) const ATTEND: Kernel = Kernel {
    name: "attend",
    op: KernelOp::Attend,
    needs: &[],
    entry: "attend",
    source: &[PRELUDE, include_str!("attend.wgsl")],
    overrides: &[],
    args: &["heads", "kv_heads", "head_dim", "offset", "stride", "window", "scale", "softcap"],
    buffers: &[Read, Read, Read, ReadWrite],
    workgroup_bytes: (512 + 2 * 128) * 4,
    invocations: 128,
};

/// Which keys are scored, and how.
#[derive(Clone, Copy)]
pub(super) struct Scores {
    pub(super) scale: f32,
    pub(super) softcap: Option<f32>,
    pub(super) window: Option<u32>,
}

pub(super) fn call(
    site: Site<'_>,
    q: Heads,
    cache: CacheId,
    scores: Scores,
    out: SlotId,
) -> Result<Call, PlanError> {
    let Heads { slot, offset, heads, head_dim } = q;
    if head_dim > WIDEST_HEAD {
        let (place, widest) = (site.place.to_owned(), WIDEST_HEAD);
        return Err(PlanError::HeadDim { place, head_dim, widest });
    }
    let kv_heads = site.plan.cache(cache).kv_heads;
    let stride = site.width(slot);
    // None is written as 0: a window of 0 would hide even the query's own position, a cap of 0 every difference.
    let window = scores.window.unwrap_or(0);
    let softcap = scores.softcap.unwrap_or(0.0).to_bits();
    let args = [heads, kv_heads, head_dim, offset, stride, window, scores.scale.to_bits(), softcap];
    let buffers =
        [Resource::Slot(slot), Resource::Keys(cache), Resource::Values(cache), Resource::Slot(out)];
    site.call(KernelOp::Attend, &args, &buffers, Work::per_row(Rows::Tokens, heads))
}
