//! What each operation needs and leaves: for those who run a plan in parts.

use super::{CacheId, Factor, Op, SlotId, WeightId};

impl Op {
    /// The weights that it reads.
    pub fn weights(&self) -> Vec<WeightId> {
        match *self {
            Self::Gather { table, .. } | Self::HostGather { table, .. } => vec![table],
            Self::RmsNorm { weight, .. } | Self::Scale { by: Factor::Weight(weight), .. } => {
                vec![weight]
            }
            Self::HeadNorm { weight, .. } => weight.into_iter().collect(),
            Self::Matmul { weight, bias, .. }
            | Self::ExpertMatmul { weight, bias, .. }
            | Self::Convolve { kernel: weight, bias, .. } => {
                std::iter::once(weight).chain(bias).collect()
            }
            Self::Scale { by: Factor::Constant(_), .. }
            | Self::Rope { .. }
            | Self::StoreKv { .. }
            | Self::Attend { .. }
            | Self::Route { .. }
            | Self::Mix { .. }
            | Self::StoreProduct { .. }
            | Self::Gate { .. }
            | Self::Add { .. }
            | Self::Softcap { .. }
            | Self::Copy { .. } => Vec::new(),
        }
    }

    /// The slots whose values it depends on; one that it changes in place is among them.
    pub fn reads(&self) -> Vec<SlotId> {
        match *self {
            Self::Gather { .. } | Self::HostGather { .. } => Vec::new(),
            Self::RmsNorm { x, .. }
            | Self::Matmul { x, .. }
            | Self::Scale { x, .. }
            | Self::Softcap { x, .. }
            | Self::Route { logits: x, .. }
            | Self::Copy { x, .. } => vec![x],
            Self::ExpertMatmul { x, experts: chosen, .. } | Self::Mix { x, shares: chosen, .. } => {
                vec![x, chosen]
            }
            Self::StoreProduct { x, by, .. } => vec![x.slot, by.slot],
            Self::Convolve { gate, .. } => vec![gate.slot],
            Self::HeadNorm { x, .. } | Self::Rope { x, .. } | Self::Attend { q: x, .. } => {
                vec![x.slot]
            }
            Self::StoreKv { k, v, .. } => vec![k.slot, v.slot],
            Self::Gate { gate, up, .. } => vec![gate.slot, up.slot],
            Self::Add { x, y, .. } => vec![x, y],
        }
    }

    /// The slots that it writes whole, whatever was there.
    pub fn overwrites(&self) -> Vec<SlotId> {
        match *self {
            Self::Route { experts, shares, .. } => vec![experts, shares],
            Self::Gather { out, .. }
            | Self::HostGather { out, .. }
            | Self::RmsNorm { out, .. }
            | Self::Matmul { out, .. }
            | Self::Attend { out, .. }
            | Self::ExpertMatmul { out, .. }
            | Self::Mix { out, .. }
            | Self::Convolve { out, .. }
            | Self::Gate { out, .. }
            | Self::Copy { out, .. } => vec![out],
            Self::HeadNorm { .. }
            | Self::Rope { .. }
            | Self::StoreKv { .. }
            | Self::StoreProduct { .. }
            | Self::Add { .. }
            | Self::Scale { .. }
            | Self::Softcap { .. } => Vec::new(),
        }
    }

    /// The cache whose keys and values it reads.
    pub fn attends(&self) -> Option<CacheId> {
        match *self {
            Self::Attend { cache, .. } => Some(cache),
            _ => None,
        }
    }

    /// The cache that it stores keys and values in.
    pub fn stores(&self) -> Option<CacheId> {
        match *self {
            Self::StoreKv { cache, .. } => Some(cache),
            _ => None,
        }
    }
}
