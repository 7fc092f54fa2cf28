//! Mistral 7B and its kin: Llama with a sliding window in every layer.
//!
//! MLC's Mistral always has a head of its own, so the bundle of a tied checkpoint gets one made from the embedding.

use super::Arch;
use super::decoder::{Biases, Block, Defaults, Dims};
use crate::config::{Config, ConfigError};
use crate::model::Model;

pub(super) const ARCH: Arch = Arch { model_type: "mistral", class: "MistralForCausalLM", describe };

/// transformers/models/mistral/configuration_mistral.py
const DEFAULTS: Defaults = Defaults {
    vocab: 32000,
    hidden: 4096,
    intermediate: 14336,
    layers: 32,
    heads: 32,
    kv_heads: Some(8),
    head_dim: None,
    context: 4096 * 32,
    eps: 1e-6,
    rope_theta: 10000.0,
    tied: false,
};
const DEFAULT_WINDOW: u32 = 4096;

fn describe(config: &Config<'_>) -> Result<Model, ConfigError> {
    let dims = Dims::read(config, &DEFAULTS)?;
    // Null turns the window off; only a missing key means the default.
    let window = config.optional_dim("sliding_window")?;
    let window = if config.has("sliding_window") { window } else { Some(DEFAULT_WINDOW) };
    let head =
        dims.own_head(if dims.tied { "model.embed_tokens.weight" } else { "lm_head.weight" });
    Ok(dims.model(ARCH.model_type, head, |_| Block {
        qkv_name: "qkv_proj",
        bias: Biases::NONE,
        qk_norm: false,
        window,
    }))
}
