//! Qwen2 and Qwen2.5: Llama with biases on q, k and v.

use super::Arch;
use super::decoder::{Biases, Block, Defaults, Dims, qwen_windows};
use crate::config::{Config, ConfigError};
use crate::model::Model;

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
    rope_theta: 10000.0,
    tied: false,
};

fn describe(config: &Config<'_>) -> Result<Model, ConfigError> {
    let dims = Dims::read(config, &DEFAULTS)?;
    let windows = qwen_windows(config, dims.layers)?;
    if config.flag("use_mrope", false)? {
        return Err(config.unsupported("use_mrope", "false"));
    }
    let head = dims.head();
    Ok(dims.model(ARCH.model_type, head, |i| Block {
        qkv_name: "c_attn",
        bias: Biases { qkv: true, ..Biases::NONE },
        qk_norm: false,
        window: windows[i as usize],
    }))
}
