//! Mistral 7B and its kin: Llama with a sliding window in every layer.
//!
//! MLC's Mistral always has a head of its own, so the bundle of a tied checkpoint gets one made from the embedding.

use super::decoder::{Block, model};
use super::dims::{Defaults, Dims, activation};
use super::rotary::{RopeDefaults, read_rope};
use super::weights::Weights;
use super::windows::sliding_window;
use super::{Arch, Origin};
use crate::config::{Config, ConfigError};
use crate::model::{Activation, Model};

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
    tied: false,
};

fn describe(config: &Config<'_>, origin: &Origin<'_>) -> Result<Model, ConfigError> {
    let dims = Dims::read(config, &DEFAULTS)?;
    let window = sliding_window(config, Some(4096))?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let rope = read_rope(config, RopeDefaults::of(&dims, 10_000.0))?;
    let weights = origin.weights(&dims);
    let head = if dims.tied {
        format!("{}embed_tokens.weight", origin.root)
    } else {
        "lm_head.weight".into()
    };
    let model = model(origin, &dims, &weights, vec![rope], |_| Block {
        window,
        activation,
        ..Block::llama(&dims)
    });
    Ok(Model { head: Weights::head(&head, [dims.vocab, dims.hidden]), ..model })
}
