//! OLMo 2: norms only after attention and MLP, and norms of q and k over all heads at once.

use super::decoder::{Biases, Block, NormOver, NormPlaces, model};
use super::dims::{Defaults, Dims, activation};
use super::rotary::{RopeDefaults, read_rope};
use super::{Arch, Origin};
use crate::config::{Config, ConfigError};
use crate::model::{Activation, Model};

pub(super) const ARCH: Arch = Arch { model_type: "olmo2", class: "Olmo2ForCausalLM", describe };

/// transformers/models/olmo2/configuration_olmo2.py
const DEFAULTS: Defaults = Defaults {
    vocab: 50304,
    hidden: 4096,
    intermediate: 11008,
    layers: 32,
    heads: 32,
    kv_heads: None,
    head_dim: None,
    context: 2048,
    eps: 1e-5,
    tied: false,
};

fn describe(config: &Config<'_>, origin: &Origin<'_>) -> Result<Model, ConfigError> {
    let dims = Dims::read(config, &DEFAULTS)?;
    let bias = Biases::attention(config.flag("attention_bias", false)?);
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let rope = read_rope(config, RopeDefaults::of(&dims, 10_000.0))?;
    Ok(model(origin, &dims, &origin.weights(&dims), vec![rope], |_| Block {
        bias,
        qk_norm: Some(NormOver::Projection),
        norms: NormPlaces::Post,
        activation,
        ..Block::llama(&dims)
    }))
}
