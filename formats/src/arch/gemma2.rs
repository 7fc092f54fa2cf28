//! Gemma 2: norms around both sublayers, softcaps, and a window in every other layer.

use super::decoder::{Biases, Block, NormPlaces, model};
use super::dims::{Defaults, Dims, activation, to_f32};
use super::rotary::{RopeDefaults, read_rope};
use super::weights::{NormWeight, Weights};
use super::windows::{Reach, sliding_window, windows};
use super::{Arch, Origin};
use crate::config::{Config, ConfigError};
use crate::model::{Activation, Head, Model};

pub(super) const ARCH: Arch = Arch { model_type: "gemma2", class: "Gemma2ForCausalLM", describe };

/// transformers/models/gemma2/configuration_gemma2.py
const DEFAULTS: Defaults = Defaults {
    vocab: 256_000,
    hidden: 2304,
    intermediate: 9216,
    layers: 26,
    heads: 8,
    kv_heads: Some(4),
    head_dim: Some(256),
    context: 8192,
    eps: 1e-6,
    tied: true,
};

fn describe(config: &Config<'_>, origin: &Origin<'_>) -> Result<Model, ConfigError> {
    let dims = Dims::read(config, &DEFAULTS)?;
    let gemma = Gemma::read(config, Some(50.0), Some(30.0))?;
    let rope = read_rope(config, RopeDefaults::of(&dims, 10_000.0))?;
    let window = sliding_window(config, Some(4096))?;
    let reaches = Reach::periodic(dims.layers, 2);
    let windows = windows(config, dims.layers, window, |i| reaches[i as usize])?;
    let weights = Weights { norm_weight: NormWeight::FromOne, ..origin.weights(&dims) };
    let model = model(origin, &dims, &weights, vec![rope], |i| Block {
        window: windows[i as usize],
        ..gemma.block(&dims)
    });
    Ok(gemma.finish(model))
}

/// What Gemma 2 and 3 share.
pub(super) struct Gemma {
    bias: Biases,
    activation: Activation,
    scale: f32,
    softcap: Option<f32>,
    logit_softcap: Option<f32>,
}

impl Gemma {
    /// With the softcaps that missing keys stand for; null turns one off.
    pub(super) fn read(
        config: &Config<'_>,
        softcap: Option<f64>,
        logit_softcap: Option<f64>,
    ) -> Result<Self, ConfigError> {
        let cap = |key: &str, default: Option<f64>| -> Result<Option<f32>, ConfigError> {
            let cap = config.optional_number(key)?;
            Ok(if config.has(key) { cap } else { default }.map(to_f32))
        };
        if config.flag("use_bidirectional_attention", false)? {
            return Err(config.unsupported("use_bidirectional_attention", "false"));
        }
        // Early exports have both keys; transformers looks at the other one.
        config.without_effect(&["hidden_act"]);
        Ok(Self {
            bias: Biases::attention(config.flag("attention_bias", false)?),
            activation: activation(config, "hidden_activation", Activation::GeluTanh)?,
            scale: to_f32(config.number("query_pre_attn_scalar", 256.0)?.powf(-0.5)),
            softcap: cap("attn_logit_softcapping", softcap)?,
            logit_softcap: cap("final_logit_softcapping", logit_softcap)?,
        })
    }

    pub(super) fn block(&self, dims: &Dims) -> Block {
        Block {
            scale: self.scale,
            softcap: self.softcap,
            bias: self.bias,
            norms: NormPlaces::PrePost,
            activation: self.activation,
            ..Block::llama(dims)
        }
    }

    pub(super) fn finish(&self, model: Model) -> Model {
        Model {
            embed_scale: Some((model.hidden as f32).sqrt()),
            // MLC has no head of its own for any Gemma, and no checkpoint has one.
            head: Head::Tied,
            logit_softcap: self.logit_softcap,
            ..model
        }
    }
}
