//! Granite 3 (dense): Llama with a factor on embeddings, attention scores, residual sums and logits.

use super::decoder::{Biases, Block, model};
use super::dims::{Defaults, Dims, activation, to_f32};
use super::rotary::{RopeDefaults, read_rope};
use super::{Arch, Origin};
use crate::config::{Config, ConfigError};
use crate::model::{Activation, Model};

pub(super) const ARCH: Arch = Arch { model_type: "granite", class: "GraniteForCausalLM", describe };

/// transformers/models/granite/configuration_granite.py
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
    let multiplier = |key: &str| config.number(key, 1.0).map(to_f32);
    let scale = multiplier("attention_multiplier")?;
    let model = model(origin, &dims, &origin.weights(&dims), vec![rope], |_| Block {
        scale,
        bias,
        activation,
        ..Block::llama(&dims)
    });
    Ok(Model {
        embed_scale: Some(multiplier("embedding_multiplier")?),
        residual_scale: Some(multiplier("residual_multiplier")?),
        logit_scale: Some(1.0 / multiplier("logits_scaling")?),
        ..model
    })
}
