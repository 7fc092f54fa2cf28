//! Qwen3: RMS norms over each head of q and k; heads * head_dim need not be the hidden size.

use super::decoder::{Biases, Block, NormOver, Qkv, model};
use super::dims::{Defaults, Dims, activation};
use super::rotary::{RopeDefaults, read_rope};
use super::windows::qwen_windows;
use super::{Arch, Origin};
use crate::config::{Config, ConfigError};
use crate::model::{Activation, Model};

pub(super) const ARCH: Arch = Arch { model_type: "qwen3", class: "Qwen3ForCausalLM", describe };

/// transformers/models/qwen3/configuration_qwen3.py
const DEFAULTS: Defaults = Defaults {
    vocab: 151_936,
    hidden: 4096,
    intermediate: 22016,
    layers: 32,
    heads: 32,
    kv_heads: Some(32),
    head_dim: Some(128),
    context: 32768,
    eps: 1e-6,
    tied: false,
};

fn describe(config: &Config<'_>, origin: &Origin<'_>) -> Result<Model, ConfigError> {
    let dims = Dims::read(config, &DEFAULTS)?;
    let windows = qwen_windows(config, dims.layers)?;
    let bias = Biases::attention(config.flag("attention_bias", false)?);
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let rope = read_rope(config, RopeDefaults::of(&dims, 10_000.0))?;
    Ok(model(origin, &dims, &origin.weights(&dims), vec![rope], |i| Block {
        qkv: Qkv::Stacked("c_attn"),
        bias,
        qk_norm: Some(NormOver::Head),
        window: windows[i as usize],
        activation,
        ..Block::llama(&dims)
    }))
}
