//! Keys and values go to their positions in the cache.

use super::{Call, Kernel, KernelOp, PRELUDE, Read, ReadWrite, Resource, Site};
use crate::gpu::PlanError;
use crate::plan::{CacheId, Heads, Rows};

pub(super) const STORE_KV: Kernel = Kernel {
    name: "store_kv",
    op: KernelOp::StoreKv,
    needs: &[],
    entry: "store_kv",
    source: &[PRELUDE, include_str!("store_kv.wgsl")],
    overrides: &[],
    args: &["width", "k_offset", "k_stride", "v_offset", "v_stride"],
    buffers: &[Read, Read, ReadWrite, ReadWrite],
    workgroup_bytes: 0,
    invocations: 256,
};

pub(super) fn call(site: Site<'_>, k: Heads, v: Heads, cache: CacheId) -> Result<Call, PlanError> {
    let width = k.heads * k.head_dim;
    let args = [width, k.offset, site.width(k.slot), v.offset, site.width(v.slot)];
    let buffers = [
        Resource::Slot(k.slot),
        Resource::Slot(v.slot),
        Resource::Keys(cache),
        Resource::Values(cache),
    ];
    site.call(KernelOp::StoreKv, &args, &buffers, site.per_column(Rows::Tokens, width))
}
