//! Token mixing: softmax attention, and where its queries, keys and values come from.

use serde::{Deserialize, Serialize};

use super::{Linear, Norm, RopeId, Weight};

/// Grouped-query attention (Ainslie et al. 2023).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// Query heads.
    pub heads: u32,
    /// Key and value heads; divides `heads`.
    pub kv_heads: u32,
    /// Width of one head.
    pub head_dim: u32,
    /// Factor of the scores before the softmax.
    pub scale: f32,
    /// Scores `s` become `softcap * tanh(s / softcap)` before the softmax.
    pub softcap: Option<f32>,
    /// Sliding window: key `j` is visible to query `i` when `i - window < j <= i`. `None`: all earlier keys.
    pub window: Option<u32>,
    /// Which rotary embedding turns queries and keys; `None`: positions are not encoded.
    pub rope: Option<RopeId>,
    /// What makes queries, keys and values.
    pub projections: Projections,
    /// Before the rotation: over each head where it is `head_dim` wide, over all of a token's query heads at once where
    /// it is as wide as they are.
    pub q_norm: Option<Norm>,
    /// The same for keys.
    pub k_norm: Option<Norm>,
    /// RMS norm without a weight over each value head: its eps.
    pub v_norm_eps: Option<f32>,
    /// `[hidden, heads * head_dim]`.
    pub out: Linear,
}

/// Where queries, keys and values come from. Rows are heads, one after the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Projections {
    /// One matrix: rows are all query heads, then all key heads, then all value heads.
    Fused(Box<Linear>),
    /// A matrix each.
    Separate {
        /// `[heads * head_dim, hidden]`.
        q: Box<Linear>,
        /// `[kv_heads * head_dim, hidden]`.
        k: Box<Linear>,
        /// `[kv_heads * head_dim, hidden]`.
        v: Box<Linear>,
    },
    /// Values are the projected keys, as they are before norm and rotation.
    KeyIsValue {
        /// `[heads * head_dim, hidden]`.
        q: Box<Linear>,
        /// `[kv_heads * head_dim, hidden]`.
        k: Box<Linear>,
    },
    /// Keys and values are those that an earlier layer stored; this one stores none.
    Shared {
        /// `[heads * head_dim, hidden]`.
        q: Box<Linear>,
        /// The layer that stored them.
        with: u32,
    },
}

impl Projections {
    /// The matrices, queries first.
    pub fn linears(&self) -> Vec<&Linear> {
        match self {
            Self::Fused(qkv) => vec![qkv],
            Self::Separate { q, k, v } => vec![q, k, v],
            Self::KeyIsValue { q, k } => vec![q, k],
            Self::Shared { q, .. } => vec![q],
        }
    }
}

impl Attention {
    /// Whether it has a KV cache of its own.
    pub fn stores_kv(&self) -> bool {
        !matches!(self.projections, Projections::Shared { .. })
    }

    /// The layer whose keys and values it reads, where they are not its own.
    pub fn shares_kv_of(&self) -> Option<usize> {
        match self.projections {
            Projections::Shared { with, .. } => Some(with as usize),
            _ => None,
        }
    }

    pub(super) fn weights(&self) -> impl Iterator<Item = &Weight> {
        let norms = self.q_norm.iter().chain(&self.k_norm).map(|norm| &norm.weight);
        let projections = self.projections.linears().into_iter().flat_map(Linear::weights);
        projections.chain(norms).chain(self.out.weights())
    }
}
