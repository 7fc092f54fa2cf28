//! The description of a model: data that the converter reads for names and recipes and the runner lowers to a plan.
//!
//! A description is complete: nothing about the architecture is decided anywhere else. Layers are unrolled, so a
//! hybrid stack is just a list whose entries differ. Shapes are `[rows, columns]` with rows the output features.

mod attention;
mod cache;
mod conv;
mod mixer;
mod mlp;
mod validate;
mod weight;

use serde::{Deserialize, Serialize};

use crate::rope::Rope;
pub use attention::{Attention, Projections};
pub use cache::{CHUNK, cache_positions};
pub use conv::ShortConv;
pub use mixer::Mixer;
pub use mlp::{Activation, Experts, Gated, Mlp};
pub use validate::ModelError;
pub use weight::{Linear, Norm, Recipe, Role, Source, Weight};

/// A decoder-only transformer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
    /// Factor of a token's embedding; a tied head reads the table without it.
    pub embed_scale: Option<f32>,
    /// What every layer is told of a token beside the residual stream.
    pub per_layer_inputs: Option<PerLayerInputs>,
    /// The blocks, in order.
    pub layers: Vec<Layer>,
    /// Factor of what mixer and MLP add to the residual stream.
    pub residual_scale: Option<f32>,
    /// The norm before the head.
    pub norm: Norm,
    /// From the residual stream to logits.
    pub head: Head,
    /// Factor of the logits.
    pub logit_scale: Option<f32>,
    /// Logits `x` become `softcap * tanh(x / softcap)`.
    pub logit_softcap: Option<f32>,
}

/// One block: `x += mixer(x); x += mlp(x)`, each within its norms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// Around the mixer.
    pub mixer_norms: Norms,
    /// Token mixing.
    pub mixer: Mixer,
    /// Around the MLP.
    pub mlp_norms: Norms,
    /// Channel mixing.
    pub mlp: Mlp,
    /// After the MLP: takes in this layer's part of [`Model::per_layer_inputs`].
    pub per_layer_input: Option<PerLayerInput>,
    /// Factor of the layer's output, residual stream and all: `[1]`.
    pub scale: Option<Weight>,
}

/// Where a sublayer is normed: what it reads, what it adds to the residual stream, or both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Norms {
    /// What it reads.
    Pre(Norm),
    /// What it adds.
    Post(Norm),
    /// Both.
    PrePost {
        /// What it reads.
        pre: Norm,
        /// What it adds.
        post: Norm,
    },
}

/// Index into [`Model::ropes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RopeId(pub u32);

/// A second embedding that gives each layer `width` values of its own for a token (Gemma 4).
///
/// `input = (norm(projection x * projection_scale) + table[token] * table_scale) * scale`, where `x` is the scaled token
/// embedding; both terms are `[layers, width]`, and the norm is over each layer's part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PerLayerInputs {
    /// Values of a layer.
    pub width: u32,
    /// `[vocab, layers * width]`. A token needs one row of it, so it stays on the host.
    pub table: Weight,
    /// Factor of its rows.
    pub table_scale: f32,
    /// `[layers * width, hidden]`.
    pub projection: Linear,
    /// Factor of what it gives.
    pub projection_scale: f32,
    /// `[width]`.
    pub norm: Norm,
    /// Factor of the sum.
    pub scale: f32,
}

/// How a layer takes in its part of [`PerLayerInputs`]: `x += norm(projection(act(gate(x)) * input))`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PerLayerInput {
    /// Applied to the gate.
    pub activation: Activation,
    /// `[width, hidden]`.
    pub gate: Linear,
    /// `[hidden, width]`.
    pub projection: Linear,
    /// `[hidden]`.
    pub norm: Norm,
}

/// Where logits come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Head {
    /// The token embedding, transposed.
    Tied,
    /// A weight of its own, `[vocab, hidden]`.
    Own(Box<Linear>),
}

impl Norms {
    /// The norm of what the sublayer reads.
    pub fn pre(&self) -> Option<&Norm> {
        match self {
            Self::Pre(pre) | Self::PrePost { pre, .. } => Some(pre),
            Self::Post(_) => None,
        }
    }

    /// The norm of what the sublayer adds.
    pub fn post(&self) -> Option<&Norm> {
        match self {
            Self::Post(post) | Self::PrePost { post, .. } => Some(post),
            Self::Pre(_) => None,
        }
    }

    fn weights(&self) -> impl Iterator<Item = &Weight> {
        self.pre().into_iter().chain(self.post()).map(|norm| &norm.weight)
    }
}

impl PerLayerInputs {
    fn weights(&self) -> impl Iterator<Item = &Weight> {
        std::iter::once(&self.table).chain(self.projection.weights()).chain([&self.norm.weight])
    }
}

impl PerLayerInput {
    fn weights(&self) -> impl Iterator<Item = &Weight> {
        self.gate.weights().chain(self.projection.weights()).chain([&self.norm.weight])
    }
}

impl Model {
    /// Every weight of the bundle.
    pub fn weights(&self) -> Vec<&Weight> {
        let mut all = vec![&self.embed];
        all.extend(self.per_layer_inputs.iter().flat_map(PerLayerInputs::weights));
        for layer in &self.layers {
            all.extend(layer.mixer_norms.weights());
            all.extend(layer.mixer.weights());
            all.extend(layer.mlp_norms.weights());
            all.extend(layer.mlp.weights());
            all.extend(layer.per_layer_input.iter().flat_map(PerLayerInput::weights));
            all.extend(&layer.scale);
        }
        all.push(&self.norm.weight);
        if let Head::Own(head) = &self.head {
            all.extend(head.weights());
        }
        all
    }
}
