//! LFM2: most layers mix tokens by a short convolution, a few by attention.

use super::decoder::model_of;
use super::dims::{Defaults, Dims, impossible, to_f32};
use super::rotary::{RopeDefaults, read_rope};
use super::weights::Weights;
use super::{Arch, Origin};
use crate::config::{Config, ConfigError};
use crate::model::{
    Activation, Attention, Gated, Layer, Mixer, Mlp, Model, Norms, Projections, Role, RopeId,
    ShortConv,
};

pub(super) const ARCH: Arch = Arch { model_type: "lfm2", class: "Lfm2ForCausalLM", describe };

/// transformers/models/lfm2/configuration_lfm2.py
const DEFAULTS: Defaults = Defaults {
    vocab: 65536,
    hidden: 2560,
    intermediate: 12288,
    layers: 32,
    heads: 32,
    kv_heads: Some(8),
    head_dim: None,
    context: 128_000,
    eps: 1e-5,
    tied: true,
};

/// Keys of the first checkpoints that transformers reads nothing from.
const WITHOUT_EFFECT: &[&str] = &[
    "block_dim",
    "block_mlp_init_scale",
    "block_norm_eps",
    "block_out_init_scale",
    "block_use_swiglu",
    "block_use_xavier_init",
    "conv_dim",
    "conv_dim_out",
    "conv_use_xavier_init",
    "num_heads",
    "use_pos_enc",
];

fn describe(config: &Config<'_>, origin: &Origin<'_>) -> Result<Model, ConfigError> {
    let mut dims = Dims::read(config, &DEFAULTS)?;
    dims.eps = to_f32(config.number("norm_eps", DEFAULTS.eps)?);
    dims.tied = config.flag("tie_embedding", dims.tied)?;
    dims.intermediate = intermediate(config, dims.intermediate)?;
    dims.check()?;
    let kernel =
        Kernel { length: config.dim("conv_L_cache", 3)?, biased: config.flag("conv_bias", false)? };
    let attends = attending_layers(config, &dims)?;
    let rope = read_rope(config, RopeDefaults::of(&dims, 1_000_000.0))?;
    config.without_effect(WITHOUT_EFFECT);

    let weights = origin.weights(&dims);
    let layers = (0..).zip(attends).map(|(i, attends)| {
        let at = format!("layers.{i}");
        let norm = |name: &str| Norms::Pre(weights.norm(&format!("{at}.{name}"), dims.hidden));
        let mixer = if attends {
            Mixer::Attention(Box::new(attention(&dims, &weights, &format!("{at}.self_attn"))))
        } else {
            Mixer::ShortConv(Box::new(conv(&dims, &weights, &format!("{at}.conv"), kernel)))
        };
        Layer {
            mixer_norms: norm("operator_norm"),
            mixer,
            mlp_norms: norm("ffn_norm"),
            mlp: mlp(&dims, &weights, &format!("{at}.feed_forward")),
            per_layer_input: None,
            scale: None,
        }
    });
    let norm = weights.norm("embedding_norm", dims.hidden);
    Ok(Model { norm, ..model_of(origin, &dims, &weights, vec![rope], layers.collect()) })
}

/// `block_ff_dim` is an older name of `intermediate_size`, from which the width is made as transformers makes it.
fn intermediate(config: &Config<'_>, width: u32) -> Result<u32, ConfigError> {
    let width = config.dim("block_ff_dim", width)?;
    let multiple = u64::from(config.dim("block_multiple_of", 256)?);
    let multiplier = config.number("block_ffn_dim_multiplier", 1.0)?;
    if !config.flag("block_auto_adjust_ff_dim", true)? {
        return Ok(width);
    }
    if !(0.0..=1024.0).contains(&multiplier) {
        return impossible(format!("block_ffn_dim_multiplier is {multiplier}"));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "rounded down, as transformers does"
    )]
    let width = (multiplier * f64::from(u64_to_u32(u64::from(width) * 2 / 3))) as u64;
    Ok(u64_to_u32(width.div_ceil(multiple).saturating_mul(multiple)))
}

/// What does not fit is too large for any check that follows.
fn u64_to_u32(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// `layer_types`, or before that `full_attn_idxs`; without either, all layers attend.
fn attending_layers(config: &Config<'_>, dims: &Dims) -> Result<Vec<bool>, ConfigError> {
    let indices = config.numbers("full_attn_idxs")?;
    let Some(types) = config.texts("layer_types")? else {
        let attends = |i| indices.as_ref().is_none_or(|indices| indices.contains(&f64::from(i)));
        return Ok((0..dims.layers).map(attends).collect());
    };
    if types.len() != dims.layers as usize {
        return impossible(format!("layer_types names {} layers of {}", types.len(), dims.layers));
    }
    let attends = |kind| match kind {
        "full_attention" => Some(true),
        "conv" => Some(false),
        _ => None,
    };
    let attends: Option<Vec<bool>> = types.into_iter().map(attends).collect();
    attends.ok_or_else(|| config.unsupported("layer_types", "full_attention, conv"))
}

fn attention(dims: &Dims, weights: &Weights<'_>, at: &str) -> Attention {
    let Dims { hidden, heads, kv_heads, head_dim, .. } = *dims;
    let (q, kv) = (heads * head_dim, kv_heads * head_dim);
    let parts = [("q_proj", q), ("k_proj", kv), ("v_proj", kv)];
    let norm = |name: &str| Some(weights.norm(&format!("{at}.{name}"), head_dim));
    Attention {
        heads,
        kv_heads,
        head_dim,
        scale: 1.0 / (head_dim as f32).sqrt(),
        softcap: None,
        window: None,
        rope: Some(RopeId(0)),
        projections: Projections::Fused(Box::new(weights.stacked(
            (at, "qkv_proj"),
            &parts,
            hidden,
            false,
        ))),
        q_norm: norm("q_layernorm"),
        k_norm: norm("k_layernorm"),
        v_norm_eps: None,
        out: weights.linear(&format!("{at}.out_proj"), [hidden, q], false),
    }
}

#[derive(Clone, Copy)]
struct Kernel {
    length: u32,
    biased: bool,
}

fn conv(dims: &Dims, weights: &Weights<'_>, at: &str, kernel: Kernel) -> ShortConv {
    let (hidden, Kernel { length, biased }) = (dims.hidden, kernel);
    let vector =
        |name: &str, shape: &[u32]| weights.copy(&format!("{at}.conv.{name}"), shape, Role::Vector);
    ShortConv {
        input: weights.linear(&format!("{at}.in_proj"), [3 * hidden, hidden], biased),
        kernel: vector("weight", &[hidden, 1, length]),
        bias: biased.then(|| vector("bias", &[hidden])),
        output: weights.linear(&format!("{at}.out_proj"), [hidden, hidden], biased),
    }
}

fn mlp(dims: &Dims, weights: &Weights<'_>, at: &str) -> Mlp {
    let Dims { hidden, intermediate, .. } = *dims;
    let parts = [("w1", intermediate), ("w3", intermediate)];
    Mlp::Gated(Box::new(Gated {
        activation: Activation::Silu,
        gate_up: weights.stacked((at, "gate_up_proj"), &parts, hidden, false),
        down: weights.linear(&format!("{at}.w2"), [hidden, intermediate], false),
    }))
}
