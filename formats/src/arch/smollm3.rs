//! SmolLM3: Llama without positions in every fourth layer.

use super::decoder::{Biases, Block, model};
use super::dims::{Defaults, Dims, activation, impossible};
use super::rotary::{RopeDefaults, read_rope};
use super::windows::{Reach, sliding_window, windows};
use super::{Arch, Origin};
use crate::config::{Config, ConfigError};
use crate::model::{Activation, Model, RopeId};

pub(super) const ARCH: Arch = Arch { model_type: "smollm3", class: "SmolLM3ForCausalLM", describe };

/// transformers/models/smollm3/configuration_smollm3.py
const DEFAULTS: Defaults = Defaults {
    vocab: 128_256,
    hidden: 2048,
    intermediate: 11008,
    layers: 36,
    heads: 16,
    kv_heads: Some(4),
    head_dim: None,
    context: 32768,
    eps: 1e-6,
    tied: true,
};

fn describe(config: &Config<'_>, origin: &Origin<'_>) -> Result<Model, ConfigError> {
    let dims = Dims::read(config, &DEFAULTS)?;
    let attention_bias = config.flag("attention_bias", false)?;
    let bias = Biases { mlp: config.flag("mlp_bias", false)?, ..Biases::attention(attention_bias) };
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let rope = read_rope(config, RopeDefaults::of(&dims, 2_000_000.0))?;
    let has_rope = layers_with_rope(config, dims.layers)?;

    let used = config.flag("use_sliding_window", false)?;
    let window = sliding_window(config, None)?.filter(|_| used);
    // Qwen's key, which this architecture does not look at.
    config.without_effect(&["max_window_layers"]);
    let slides = |i: u32| window.is_some() && !has_rope[i as usize];
    let usual = |i| if slides(i) { Reach::Sliding } else { Reach::Full };
    let windows = windows(config, dims.layers, window, usual)?;

    Ok(model(origin, &dims, &origin.weights(&dims), vec![rope], |i| Block {
        rope: has_rope[i as usize].then_some(RopeId(0)),
        window: windows[i as usize],
        bias,
        activation,
        ..Block::llama(&dims)
    }))
}

/// `no_rope_layers`, in which 1 means that the layer has positions after all; or all but every n-th.
fn layers_with_rope(config: &Config<'_>, layers: u32) -> Result<Vec<bool>, ConfigError> {
    let interval = config.dim("no_rope_layer_interval", 4)?;
    let Some(flags) = config.numbers("no_rope_layers")? else {
        return Ok((0..layers).map(|i| !(i + 1).is_multiple_of(interval)).collect());
    };
    if flags.len() < layers as usize {
        return impossible(format!("no_rope_layers names {} layers of {layers}", flags.len()));
    }
    Ok(flags.into_iter().map(|flag| flag != 0.0).collect())
}
