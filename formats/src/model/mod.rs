//! The description of a model: data that the converter reads for names and recipes and the runner lowers to a plan.
//!
//! A description is complete: nothing about the architecture is decided anywhere else. Layers are unrolled, so a
//! hybrid stack is just a list whose entries differ. Shapes are `[rows, columns]` with rows the output features.

mod validate;

use serde::{Deserialize, Serialize};

use crate::rope::Rope;
pub use validate::ModelError;

/// A decoder-only transformer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// `model_type` of the checkpoint's config.
    pub architecture: String,
    /// Rows of the embedding table and of the logits.
    pub vocab: u32,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Positions the model was trained for.
    pub context: u32,
    /// The rotary embeddings that layers refer to by [`RopeId`].
    pub ropes: Vec<Rope>,
    /// Token embedding, `[vocab, hidden]`.
    pub embed: Weight,
    /// The blocks, in order.
    pub layers: Vec<Layer>,
    /// The norm before the head.
    pub norm: Norm,
    /// From the residual stream to logits.
    pub head: Head,
}

/// One block: `x += attention(norm(x)); x += mlp(norm(x))`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// Norm before the attention.
    pub attention_norm: Norm,
    /// Token mixing.
    pub attention: Attention,
    /// Norm before the MLP.
    pub mlp_norm: Norm,
    /// Channel mixing.
    pub mlp: Mlp,
}

/// Index into [`Model::ropes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RopeId(pub u32);

/// Grouped-query attention (Ainslie et al. 2023) with rotary positions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// Sliding window: key `j` is visible to query `i` when `i - window < j <= i`. `None`: all earlier keys.
    pub window: Option<u32>,
    /// Which rotary embedding turns queries and keys.
    pub rope: RopeId,
    /// RMS norms over each head of q and of k, before the rotation.
    pub qk_norm: Option<QkNorm>,
    /// Rows are all query heads, then all key heads, then all value heads.
    pub qkv: Linear,
    /// `[hidden, heads * head_dim]`.
    pub out: Linear,
}

/// Norms over `head_dim` values of each query and key head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QkNorm {
    /// For every query head.
    pub q: Norm,
    /// For every key head.
    pub k: Norm,
}

/// Gated MLP: `down(act(gate(x)) * up(x))`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mlp {
    /// Applied to the gate.
    pub activation: Activation,
    /// `[2 * intermediate, hidden]`: gate rows, then up rows.
    pub gate_up: Linear,
    /// `[hidden, intermediate]`.
    pub down: Linear,
}

/// Elementwise function of an MLP's gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
}

/// RMS norm: `x / sqrt(mean(x^2) + eps) * weight`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Norm {
    /// `[width]`.
    pub weight: Weight,
    /// Added to the mean square.
    pub eps: f32,
}

/// `y = W x + b`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Linear {
    /// `[out, in]`.
    pub weight: Weight,
    /// `[out]`.
    pub bias: Option<Weight>,
}

/// Where logits come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Head {
    /// The token embedding, transposed.
    Tied,
    /// A weight of its own, `[vocab, hidden]`.
    Own(Box<Linear>),
}

/// A weight of the bundle and how it is made from the checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weight {
    /// Name in the bundle, ending in `.weight` where it can be quantised.
    pub name: String,
    /// `[rows, columns]`, or `[width]` of a vector.
    pub shape: Vec<u64>,
    /// What it is, which with the scheme decides whether it is quantised.
    pub role: Role,
    /// How it is made.
    pub recipe: Recipe,
}

/// What a weight is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// A projection.
    Linear,
    /// The token table (also the head, where tied).
    Embedding,
    /// An output head of its own.
    Head,
    /// A norm or a bias: never quantised.
    Vector,
}

/// How a weight is made from checkpoint tensors. Data, so that it can be printed, compared and streamed by row bands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recipe {
    /// The tensor as it is.
    Copy(Source),
    /// Tensors stacked along the first dimension, in this order.
    Rows(Vec<Source>),
}

/// A checkpoint tensor and the shape it must have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Name in the checkpoint.
    pub tensor: String,
    /// Expected shape.
    pub shape: Vec<u64>,
}

impl Recipe {
    /// The tensors it reads, in the order of their rows.
    pub fn sources(&self) -> &[Source] {
        match self {
            Self::Copy(source) => std::slice::from_ref(source),
            Self::Rows(sources) => sources,
        }
    }
}

impl std::fmt::Display for Recipe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, source) in self.sources().iter().enumerate() {
            write!(f, "{}{}", if i == 0 { "" } else { " ++ " }, source.tensor)?;
        }
        Ok(())
    }
}

impl Weight {
    /// A weight that is one checkpoint tensor, unchanged.
    pub fn copy(
        name: impl Into<String>,
        tensor: impl Into<String>,
        shape: &[u64],
        role: Role,
    ) -> Self {
        let source = Source { tensor: tensor.into(), shape: shape.to_vec() };
        Self { name: name.into(), shape: shape.to_vec(), role, recipe: Recipe::Copy(source) }
    }

    /// Rows (the first dimension).
    pub fn rows(&self) -> u64 {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Values in one row (the last dimension of a matrix); 1 for a vector.
    pub fn columns(&self) -> u64 {
        self.shape.get(1).copied().unwrap_or(1)
    }
}

impl Linear {
    fn weights(&self) -> impl Iterator<Item = &Weight> {
        std::iter::once(&self.weight).chain(&self.bias)
    }
}

impl Model {
    /// Every weight of the bundle, in the order of the forward pass.
    pub fn weights(&self) -> Vec<&Weight> {
        let mut all = vec![&self.embed];
        for layer in &self.layers {
            let Attention { qkv, out, qk_norm, .. } = &layer.attention;
            all.push(&layer.attention_norm.weight);
            all.extend(qkv.weights());
            all.extend(qk_norm.iter().flat_map(|norm| [&norm.q.weight, &norm.k.weight]));
            all.extend(out.weights());
            all.push(&layer.mlp_norm.weight);
            all.extend(layer.mlp.gate_up.weights());
            all.extend(layer.mlp.down.weights());
        }
        all.push(&self.norm.weight);
        if let Head::Own(head) = &self.head {
            all.extend(head.weights());
        }
        all
    }

    /// The matrix that makes logits, `[vocab, hidden]`.
    pub fn head_weight(&self) -> &Weight {
        match &self.head {
            Head::Tied => &self.embed,
            Head::Own(head) => &head.weight,
        }
    }
}
