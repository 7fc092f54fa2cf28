//! Gemma 4: layers of two kinds that differ in window, heads and rope, keys and values shared between layers, and a
//! second embedding that reaches every layer.

mod layers;

use super::decoder::{Biases, Block, NormOver, NormPlaces, model};
use super::dims::{Defaults, Dims, activation, impossible, to_f32};
use super::weights::Weights;
use super::windows::Reach;
use super::{Arch, Origin};
use crate::config::{Config, ConfigError};
use crate::model::{Activation, Model, PerLayerInput, PerLayerInputs, Role};
use layers::{Shape, rope_ids, shapes};

pub(super) const TEXT: Arch =
    Arch { model_type: "gemma4_text", class: "Gemma4ForCausalLM", describe };
pub(super) const MULTIMODAL: Arch =
    Arch { model_type: "gemma4", class: "Gemma4ForConditionalGeneration", describe };

/// transformers/models/gemma4/configuration_gemma4.py
const DEFAULTS: Defaults = Defaults {
    vocab: 262_144,
    hidden: 2304,
    intermediate: 9216,
    layers: 30,
    heads: 8,
    kv_heads: Some(4),
    head_dim: Some(256),
    context: 131_072,
    eps: 1e-6,
    tied: true,
};

fn describe(config: &Config<'_>, origin: &Origin<'_>) -> Result<Model, ConfigError> {
    let dims = Dims::read(config, &DEFAULTS)?;
    let activation = activation(config, "hidden_activation", Activation::GeluTanh)?;
    let bias = Biases::attention(config.flag("attention_bias", false)?);
    let window = config.dim("sliding_window", 512)?;
    let logit_softcap = config.optional_number("final_logit_softcapping")?.map(to_f32);
    refuse_what_is_missing(config)?;
    let shapes = shapes(config, &dims)?;
    let mut ropes = Vec::new();
    let rope_ids = rope_ids(config, &shapes, &mut ropes)?;

    let weights = origin.weights(&dims);
    let mut model = model(origin, &dims, &weights, ropes, |i| {
        let Shape { reach, dims, qkv } = &shapes[i as usize];
        Block {
            // Norms of q and k keep the scores small.
            scale: 1.0,
            window: (*reach == Reach::Sliding).then_some(window),
            rope: Some(rope_ids[i as usize]),
            qkv: *qkv,
            qk_norm: Some(NormOver::Head),
            v_norm: true,
            bias,
            norms: NormPlaces::PrePost,
            activation,
            ..Block::llama(dims)
        }
    });
    model.embed_scale = Some((dims.hidden as f32).sqrt());
    model.logit_softcap = logit_softcap;
    for (i, layer) in model.layers.iter_mut().enumerate() {
        layer.scale = Some(weights.copy(&format!("layers.{i}.layer_scalar"), &[1], Role::Vector));
    }
    add_per_layer_inputs(config, &dims, &weights, activation, &mut model)?;
    Ok(model)
}

fn refuse_what_is_missing(config: &Config<'_>) -> Result<(), ConfigError> {
    if config.flag("enable_moe_block", false)? {
        return Err(config.unsupported("enable_moe_block", "false"));
    }
    config.without_effect(&["num_experts", "top_k_experts", "moe_intermediate_size"]);
    // "vision" lets the tokens of an image see each other; text stays causal.
    match config.text("use_bidirectional_attention")? {
        None | Some("vision") => Ok(()),
        Some(_) => Err(config.unsupported("use_bidirectional_attention", "null, vision")),
    }
}

fn add_per_layer_inputs(
    config: &Config<'_>,
    dims: &Dims,
    weights: &Weights<'_>,
    activation: Activation,
    model: &mut Model,
) -> Result<(), ConfigError> {
    let vocab = config.dim("vocab_size_per_layer_input", DEFAULTS.vocab)?;
    let width = config.optional_count("hidden_size_per_layer_input")?.unwrap_or(256);
    if width == 0 {
        return Ok(());
    }
    let (hidden, Some(all)) = (dims.hidden, width.checked_mul(dims.layers)) else {
        return impossible(format!("{width} values for each of {} layers", dims.layers));
    };
    model.per_layer_inputs = Some(PerLayerInputs {
        width,
        table: weights.copy("embed_tokens_per_layer.weight", &[vocab, all], Role::Embedding),
        table_scale: (width as f32).sqrt(),
        projection: weights.linear("per_layer_model_projection", [all, hidden], false),
        projection_scale: 1.0 / (hidden as f32).sqrt(),
        norm: weights.norm("per_layer_projection_norm", width),
        scale: std::f32::consts::FRAC_1_SQRT_2,
    });
    for (i, layer) in model.layers.iter_mut().enumerate() {
        let at = format!("layers.{i}");
        layer.per_layer_input = Some(PerLayerInput {
            activation,
            gate: weights.gate(&format!("{at}.per_layer_input_gate"), [width, hidden]),
            projection: weights.linear(
                &format!("{at}.per_layer_projection"),
                [hidden, width],
                false,
            ),
            norm: weights.norm(&format!("{at}.post_per_layer_input_norm"), hidden),
        });
    }
    Ok(())
}
