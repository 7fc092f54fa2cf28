//! Llama 2 and 3, SmolLM2, TinyLlama and whatever else is saved as `LlamaForCausalLM`.
//!
//! MLC's Llama has no biases and drops them with a warning; here they are kept, as records beside their weights.

use super::Arch;
use super::decoder::{Biases, Block, Defaults, Dims};
use crate::config::{Config, ConfigError};
use crate::model::Model;

pub(super) const ARCH: Arch = Arch { model_type: "llama", class: "LlamaForCausalLM", describe };

/// transformers/models/llama/configuration_llama.py
const DEFAULTS: Defaults = Defaults {
    vocab: 32000,
    hidden: 4096,
    intermediate: 11008,
    layers: 32,
    heads: 32,
    kv_heads: None,
    head_dim: None,
    context: 2048,
    eps: 1e-6,
    rope_theta: 10000.0,
    tied: false,
};

fn describe(config: &Config<'_>) -> Result<Model, ConfigError> {
    let dims = Dims::read(config, &DEFAULTS)?;
    let attention_bias = config.flag("attention_bias", false)?;
    let mlp_bias = config.flag("mlp_bias", false)?;
    if config.flag("rope_interleaved", false)? {
        return Err(config.unsupported("rope_interleaved", "false"));
    }
    let head = dims.head();
    Ok(dims.model(ARCH.model_type, head, |_| Block {
        qkv_name: "qkv_proj",
        bias: Biases { qkv: attention_bias, out: attention_bias, mlp: mlp_bias },
        qk_norm: false,
        window: None,
    }))
}
