//! Qwen2 and Qwen2.5: Llama with biases on q, k and v.

use super::decoder::{Biases, Block, Qkv, model};
use super::dims::{Defaults, Dims, activation};
use super::rotary::{RopeDefaults, read_rope};
use super::windows::qwen_windows;
use super::{Arch, Origin};
use crate::config::{Config, ConfigError};
use crate::model::{Activation, Model};

pub(super) const ARCH: Arch = Arch { model_type: "qwen2", class: "Qwen2ForCausalLM", describe };

/// transformers/models/qwen2/configuration_qwen2.py
const DEFAULTS: Defaults = Defaults {
    vocab: 151_936,
    hidden: 4096,
    intermediate: 22016,
    layers: 32,
    heads: 32,
    kv_heads: Some(32),
    head_dim: None,
    context: 32768,
    eps: 1e-6,
    tied: false,
};

fn describe(config: &Config<'_>, origin: &Origin<'_>) -> Result<Model, ConfigError> {
    let dims = Dims::read(config, &DEFAULTS)?;
    let windows = qwen_windows(config, dims.layers)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let rope = read_rope(config, RopeDefaults::of(&dims, 10_000.0))?;
    if config.flag("use_mrope", false)? {
        return Err(config.unsupported("use_mrope", "false"));
    }
    Ok(model(origin, &dims, &origin.weights(&dims), vec![rope], |i| Block {
        qkv: Qkv::Stacked("c_attn"),
        bias: Biases { qkv: true, ..Biases::NONE },
        window: windows[i as usize],
        activation,
        ..Block::llama(&dims)
    }))
}
