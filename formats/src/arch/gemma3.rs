//! Gemma 3: Gemma 2 with norms of q and k instead of softcaps, five sliding layers to a full one, and a rope for each.

use super::decoder::{Block, NormOver, Qkv, model};
use super::dims::{Defaults, Dims};
use super::gemma2::Gemma;
use super::rotary::{RopeDefaults, rope, same, theta};
use super::weights::{Names, NormWeight, Weights};
use super::windows::{Reach, layer_types, sliding_window};
use super::{Arch, Origin};
use crate::config::{Config, ConfigError};
use crate::model::{Model, RopeId};
use crate::rope::Rope;

pub(super) const TEXT: Arch =
    Arch { model_type: "gemma3_text", class: "Gemma3ForCausalLM", describe };
pub(super) const MULTIMODAL: Arch =
    Arch { model_type: "gemma3", class: "Gemma3ForConditionalGeneration", describe };

/// transformers/models/gemma3/configuration_gemma3.py
const DEFAULTS: Defaults = Defaults {
    vocab: 262_208,
    hidden: 2304,
    intermediate: 9216,
    layers: 26,
    heads: 8,
    kv_heads: Some(4),
    head_dim: Some(256),
    context: 131_072,
    eps: 1e-6,
    tied: true,
};

/// mlc_llm/model/gemma3/gemma3_loader.py
const NAMES: Names = Names { prefix: "language_model.model.", renamed: &[] };

fn describe(config: &Config<'_>, origin: &Origin<'_>) -> Result<Model, ConfigError> {
    let dims = Dims::read(config, &DEFAULTS)?;
    let gemma = Gemma::read(config, None, None)?;
    let pattern = match config.optional_dim("sliding_window_pattern")? {
        Some(pattern) => pattern,
        None => config.dim("_sliding_window_pattern", 6)?,
    };
    let reaches = layer_types(config, dims.layers)?;
    let reaches = reaches.unwrap_or_else(|| Reach::periodic(dims.layers, pattern));
    let window = sliding_window(config, Some(4096))?;
    let [full, sliding] = ropes(config, &dims)?;
    let weights =
        Weights { names: NAMES, norm_weight: NormWeight::FromOne, ..origin.weights(&dims) };
    let model = model(origin, &dims, &weights, vec![full, sliding], |i| {
        let (rope, window) = match reaches[i as usize] {
            Reach::Full => (0, None),
            Reach::Sliding => (1, window),
        };
        Block {
            qkv: Qkv::Separate,
            qk_norm: Some(NormOver::Head),
            rope: Some(RopeId(rope)),
            window,
            ..gemma.block(&dims)
        }
    });
    Ok(gemma.finish(model))
}

/// The ropes of full and of sliding layers.
fn ropes(config: &Config<'_>, dims: &Dims) -> Result<[Rope; 2], ConfigError> {
    let (global, local) = (RopeDefaults::of(dims, 1_000_000.0), RopeDefaults::of(dims, 10_000.0));
    let of = |key: &str, section: Option<Config<'_>>, defaults: RopeDefaults| {
        let theta = theta(config, key, section.as_ref(), defaults.theta)?;
        rope(section, RopeDefaults { theta, ..defaults })
    };
    let sections = config.section("rope_parameters")?;
    let section = |reach: Reach| match &sections {
        Some(sections) => sections.section(reach.name()),
        None => Ok(None),
    };
    let full = of("rope_theta", section(Reach::Full)?, global)?;
    let sliding = of("rope_local_base_freq", section(Reach::Sliding)?, local)?;
    let scaled =
        config.section("rope_scaling")?.map(|scaling| of("rope_theta", Some(scaling), global));
    let full = match (&sections, scaled.transpose()?) {
        (Some(_), Some(scaled)) => same(config, full, &scaled)?,
        (_, scaled) => scaled.unwrap_or(full),
    };
    if let Some(sections) = sections {
        sections.all_read("rope_parameters")?;
    }
    Ok([full, sliding])
}
