//! Qwen3: RMS norms over each head of q and k; heads * head_dim need not be the hidden size.

use super::Arch;
use super::decoder::{Biases, Block, Defaults, Dims, qwen_windows};
use crate::config::{Config, ConfigError};
use crate::model::Model;

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
    rope_theta: 10000.0,
    tied: false,
};

fn describe(config: &Config<'_>) -> Result<Model, ConfigError> {
    let dims = Dims::read(config, &DEFAULTS)?;
    let windows = qwen_windows(config, dims.layers)?;
    let attention_bias = config.flag("attention_bias", false)?;
    let head = dims.head();
    Ok(dims.model(ARCH.model_type, head, |i| Block {
        qkv_name: "c_attn",
        bias: Biases { qkv: attention_bias, out: attention_bias, mlp: false },
        qk_norm: true,
        window: windows[i as usize],
    }))
}
