//! Llama 2 and 3, SmolLM2, TinyLlama and whatever else is saved as `LlamaForCausalLM`.
//!
//! MLC's Llama has no biases and drops them with a warning; here they are kept, as records beside their weights.

use super::decoder::{Biases, Block, model};
use super::dims::{Defaults, Dims, activation};
use super::rotary::{RopeDefaults, read_rope};
use super::{Arch, Origin};
use crate::config::{Config, ConfigError};
use crate::model::{Activation, Model};

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
    tied: false,
};

fn describe(config: &Config<'_>, origin: &Origin<'_>) -> Result<Model, ConfigError> {
    let dims = Dims::read(config, &DEFAULTS)?;
    let attention_bias = config.flag("attention_bias", false)?;
    let bias = Biases { mlp: config.flag("mlp_bias", false)?, ..Biases::attention(attention_bias) };
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let rope = read_rope(config, RopeDefaults::of(&dims, 10_000.0))?;
    if config.flag("rope_interleaved", false)? {
        return Err(config.unsupported("rope_interleaved", "false"));
    }
    Ok(model(origin, &dims, &origin.weights(&dims), vec![rope], |_| Block {
        bias,
        activation,
        ..Block::llama(&dims)
    }))
}
