//! A decoder from its blocks. What all of them share is here; what an architecture does differently it says in [`Block`].

use super::Origin;
use super::dims::Dims;
use super::weights::Weights;
use crate::model::{
    Activation, Attention, Experts, Gated, Head, Layer, Mixer, Mlp, Model, Norms, Projections,
    Role, RopeId,
};
use crate::rope::Rope;

/// One layer.
pub(super) struct Block {
    pub kv_heads: u32,
    pub head_dim: u32,
    pub intermediate: u32,
    /// Factor of the attention scores.
    pub scale: f32,
    pub softcap: Option<f32>,
    pub window: Option<u32>,
    pub rope: Option<RopeId>,
    pub qkv: Qkv,
    pub qk_norm: Option<NormOver>,
    pub v_norm: bool,
    pub bias: Biases,
    pub norms: NormPlaces,
    pub activation: Activation,
    /// Instead of one MLP for all tokens.
    pub routing: Option<Routing>,
}

/// Experts, and how tokens get to them.
#[derive(Clone, Copy)]
pub(super) struct Routing {
    pub experts: u32,
    pub per_token: u32,
    pub normalised: bool,
    /// Width of an expert.
    pub intermediate: u32,
}

/// How queries, keys and values are projected.
#[derive(Clone, Copy)]
pub(super) enum Qkv {
    /// By three tensors, which the bundle stacks under this name.
    Stacked(&'static str),
    /// By one tensor, `qkv_proj`. Such a checkpoint has its `gate_up_proj` in one, too.
    Fused,
    /// By three tensors, which stay apart.
    Separate,
    /// By two: values are projected as keys are.
    KeyIsValue,
    /// Queries by one tensor; the rest is what this layer stored.
    Shared(u32),
}

/// What the norms of queries and keys are over.
#[derive(Clone, Copy)]
pub(super) enum NormOver {
    Head,
    Projection,
}

/// Which projections have biases.
#[derive(Clone, Copy)]
pub(super) struct Biases {
    pub qkv: bool,
    pub out: bool,
    pub mlp: bool,
}

/// Where a layer is normed, and what the norms are called.
#[derive(Clone, Copy)]
pub(super) enum NormPlaces {
    /// `input_layernorm` and `post_attention_layernorm`, which despite its name is before the MLP.
    Pre,
    /// `post_attention_layernorm` and `post_feedforward_layernorm`.
    Post,
    /// `input_layernorm`, `post_attention_layernorm`, `pre_feedforward_layernorm` and `post_feedforward_layernorm`.
    PrePost,
}

impl Biases {
    pub(super) const NONE: Self = Self { qkv: false, out: false, mlp: false };

    /// On all four projections of the attention.
    pub(super) fn attention(biased: bool) -> Self {
        Self { qkv: biased, out: biased, mlp: false }
    }
}

impl Block {
    /// A block as Llama has it.
    pub(super) fn llama(dims: &Dims) -> Self {
        Self {
            kv_heads: dims.kv_heads,
            head_dim: dims.head_dim,
            intermediate: dims.intermediate,
            scale: 1.0 / (dims.head_dim as f32).sqrt(),
            softcap: None,
            window: None,
            rope: Some(RopeId(0)),
            qkv: Qkv::Stacked("qkv_proj"),
            qk_norm: None,
            v_norm: false,
            bias: Biases::NONE,
            norms: NormPlaces::Pre,
            activation: Activation::Silu,
            routing: None,
        }
    }
}

/// The usual head: tied, or `lm_head`.
pub(super) fn head(dims: &Dims) -> Head {
    if dims.tied { Head::Tied } else { Weights::head("lm_head.weight", [dims.vocab, dims.hidden]) }
}

/// A model of blocks, `block` saying what the layer of that number is like.
pub(super) fn model(
    origin: &Origin<'_>,
    dims: &Dims,
    weights: &Weights<'_>,
    ropes: Vec<Rope>,
    block: impl Fn(u32) -> Block,
) -> Model {
    let layers = (0..dims.layers).map(|i| layer(dims, weights, i, &block(i)));
    model_of(origin, dims, weights, ropes, layers.collect())
}

/// A model of layers.
pub(super) fn model_of(
    origin: &Origin<'_>,
    dims: &Dims,
    weights: &Weights<'_>,
    ropes: Vec<Rope>,
    layers: Vec<Layer>,
) -> Model {
    let table = [dims.vocab, dims.hidden];
    Model {
        architecture: origin.architecture.into(),
        vocab: dims.vocab,
        hidden: dims.hidden,
        context: dims.context,
        ropes,
        embed: weights.copy("embed_tokens.weight", &table, Role::Embedding),
        embed_scale: None,
        per_layer_inputs: None,
        layers,
        residual_scale: None,
        norm: weights.norm("norm", dims.hidden),
        head: head(dims),
        logit_scale: None,
        logit_softcap: None,
    }
}

fn layer(dims: &Dims, weights: &Weights<'_>, i: u32, block: &Block) -> Layer {
    let at = format!("layers.{i}");
    let norm = |name: &str| weights.norm(&format!("{at}.{name}"), dims.hidden);
    let (mixer_norms, mlp_norms) = match block.norms {
        NormPlaces::Pre => {
            (Norms::Pre(norm("input_layernorm")), Norms::Pre(norm("post_attention_layernorm")))
        }
        NormPlaces::Post => (
            Norms::Post(norm("post_attention_layernorm")),
            Norms::Post(norm("post_feedforward_layernorm")),
        ),
        NormPlaces::PrePost => (
            Norms::PrePost { pre: norm("input_layernorm"), post: norm("post_attention_layernorm") },
            Norms::PrePost {
                pre: norm("pre_feedforward_layernorm"),
                post: norm("post_feedforward_layernorm"),
            },
        ),
    };
    Layer {
        mixer_norms,
        mixer: Mixer::Attention(Box::new(attention(
            dims,
            weights,
            &format!("{at}.self_attn"),
            block,
        ))),
        mlp_norms,
        mlp: mlp(dims, weights, &format!("{at}.mlp"), block),
        per_layer_input: None,
        scale: None,
    }
}

fn attention(dims: &Dims, weights: &Weights<'_>, at: &str, block: &Block) -> Attention {
    let Block { kv_heads, head_dim, scale, softcap, window, rope, .. } = *block;
    let (hidden, biased) = (dims.hidden, block.bias.qkv);
    let (q, kv) = (dims.heads * head_dim, kv_heads * head_dim);
    let linear = |name: &str, rows| {
        Box::new(weights.linear(&format!("{at}.{name}"), [rows, hidden], biased))
    };
    let projections = match block.qkv {
        Qkv::Stacked(name) => {
            let parts = [("q_proj", q), ("k_proj", kv), ("v_proj", kv)];
            Projections::Fused(Box::new(weights.stacked((at, name), &parts, hidden, biased)))
        }
        Qkv::Fused => Projections::Fused(linear("qkv_proj", q + 2 * kv)),
        Qkv::Separate => Projections::Separate {
            q: linear("q_proj", q),
            k: linear("k_proj", kv),
            v: linear("v_proj", kv),
        },
        Qkv::KeyIsValue => {
            Projections::KeyIsValue { q: linear("q_proj", q), k: linear("k_proj", kv) }
        }
        Qkv::Shared(with) => Projections::Shared { q: linear("q_proj", q), with },
    };
    let stores_kv = !matches!(block.qkv, Qkv::Shared(_));
    let qk_norm = |name: &str, projection: u32| {
        let width = match block.qk_norm? {
            NormOver::Head => head_dim,
            NormOver::Projection => projection,
        };
        Some(weights.norm(&format!("{at}.{name}"), width))
    };
    Attention {
        heads: dims.heads,
        kv_heads,
        head_dim,
        scale,
        softcap,
        window,
        rope,
        projections,
        q_norm: qk_norm("q_norm", q),
        k_norm: qk_norm("k_norm", kv).filter(|_| stores_kv),
        v_norm_eps: (block.v_norm && stores_kv).then_some(dims.eps),
        out: weights.linear(&format!("{at}.o_proj"), [hidden, q], block.bias.out),
    }
}

fn mlp(dims: &Dims, weights: &Weights<'_>, at: &str, block: &Block) -> Mlp {
    if let Some(routing) = block.routing {
        return Mlp::Experts(Box::new(experts(dims, weights, at, block.activation, routing)));
    }
    let (hidden, width, biased) = (dims.hidden, block.intermediate, block.bias.mlp);
    let gate_up = if let Qkv::Fused = block.qkv {
        weights.linear(&format!("{at}.gate_up_proj"), [2 * width, hidden], biased)
    } else {
        let parts = [("gate_proj", width), ("up_proj", width)];
        weights.stacked((at, "gate_up_proj"), &parts, hidden, biased)
    };
    Mlp::Gated(Box::new(Gated {
        activation: block.activation,
        gate_up,
        down: weights.linear(&format!("{at}.down_proj"), [hidden, width], biased),
    }))
}

fn experts(
    dims: &Dims,
    weights: &Weights<'_>,
    at: &str,
    activation: Activation,
    routing: Routing,
) -> Experts {
    let Routing { experts, per_token, normalised, intermediate } = routing;
    let stacked = |name: &str, parts: &[&str], rows, columns| {
        weights.experts((at, name), experts, parts, [rows, columns])
    };
    Experts {
        per_token,
        normalised,
        activation,
        router: weights.gate(&format!("{at}.gate"), [experts, dims.hidden]),
        gate_up: stacked("moe_gate_up_proj", &["gate_proj", "up_proj"], intermediate, dims.hidden),
        down: stacked("moe_down_proj", &["down_proj"], dims.hidden, intermediate),
    }
}
