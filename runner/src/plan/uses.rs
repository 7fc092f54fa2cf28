//! What each operation needs and leaves: for those who run a plan in parts.

use super::{CacheId, Factor, HistoryId, Op, Plan, SlotId, WeightId};

/// What a step leaves for later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    Slot(SlotId),
    /// Keys and values of this call's tokens.
    Cache(CacheId),
    /// What a short convolution looks back at, with this call's tokens.
    History(HistoryId),
}

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

    /// What it changes, wholly or in part.
    pub fn leaves(&self) -> Left {
        match *self {
            Self::Gather { out, .. }
            | Self::HostGather { out, .. }
            | Self::RmsNorm { out, .. }
            | Self::Matmul { out, .. }
            | Self::Attend { out, .. }
            | Self::ExpertMatmul { out, .. }
            | Self::Mix { out, .. }
            | Self::Convolve { out, .. }
            | Self::Gate { out, .. }
            | Self::Copy { out, .. } => Left::Slot(out),
            Self::Route { shares, .. } => Left::Slot(shares),
            Self::HeadNorm { x, .. } | Self::Rope { x, .. } => Left::Slot(x.slot),
            Self::Add { x, .. } | Self::Scale { x, .. } | Self::Softcap { x, .. } => Left::Slot(x),
            Self::StoreKv { cache, .. } => Left::Cache(cache),
            Self::StoreProduct { history, .. } => Left::History(history),
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

impl Plan {
    /// Multiplications of a step for each token, but for those that depend on its position.
    pub fn work(&self, op: &Op) -> u64 {
        match *op {
            Op::Matmul { weight, .. } => {
                let weight = self.weight(weight);
                u64::from(weight.rows) * u64::from(weight.columns)
            }
            Op::ExpertMatmul { experts, weight, out, .. } => {
                // Rows of `out` are a token's with one expert.
                let (each, chosen) = (self.slot(out).width, self.slot(experts).width);
                u64::from(each) * u64::from(chosen) * u64::from(self.weight(weight).columns)
            }
            _ => 0,
        }
    }
}
