//! Qwen3 with routed experts: as the dense one, but each token goes through a few of many MLPs.

use super::decoder::{Biases, Block, NormOver, Qkv, Routing, model};
use super::dims::{Defaults, Dims, activation, impossible};
use super::rotary::{RopeDefaults, read_rope};
use super::weights::Weights;
use super::windows::sliding_window;
use super::{Arch, Origin};
use crate::config::{Config, ConfigError};
use crate::model::{Activation, Model};

pub(super) const ARCH: Arch =
    Arch { model_type: "qwen3_moe", class: "Qwen3MoeForCausalLM", describe };

/// transformers/models/qwen3_moe/configuration_qwen3_moe.py
const DEFAULTS: Defaults = Defaults {
    vocab: 151_936,
    hidden: 2048,
    intermediate: 6144,
    layers: 24,
    heads: 32,
    kv_heads: Some(4),
    head_dim: None,
    context: 32768,
    eps: 1e-6,
    tied: false,
};

fn describe(config: &Config<'_>, origin: &Origin<'_>) -> Result<Model, ConfigError> {
    let dims = Dims::read(config, &DEFAULTS)?;
    let window = window(config)?;
    let bias = Biases::attention(config.flag("attention_bias", false)?);
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let rope = read_rope(config, RopeDefaults::of(&dims, 10_000.0))?;
    let routing = routing(config)?;
    let sparse = sparse_layers(config, &dims)?;
    // They balance the experts while training.
    config.without_effect(&["output_router_logits", "router_aux_loss_coef"]);
    let weights = origin.weights(&dims);
    // mlc_llm/model/qwen3_moe/qwen3_moe_model.py knows no tied head.
    let head = if dims.tied {
        format!("{}embed_tokens.weight", origin.root)
    } else {
        "lm_head.weight".into()
    };
    let model = model(origin, &dims, &weights, vec![rope], |i| Block {
        qkv: Qkv::Stacked("c_attn"),
        bias,
        qk_norm: Some(NormOver::Head),
        window,
        activation,
        routing: sparse[i as usize].then_some(routing),
        ..Block::llama(&dims)
    });
    Ok(Model { head: Weights::head(&head, [dims.vocab, dims.hidden]), ..model })
}

/// Unlike in the dense model, all layers slide or none does.
fn window(config: &Config<'_>) -> Result<Option<u32>, ConfigError> {
    let used = config.flag("use_sliding_window", false)?;
    config.without_effect(&["max_window_layers"]);
    Ok(sliding_window(config, Some(4096))?.filter(|_| used))
}

fn routing(config: &Config<'_>) -> Result<Routing, ConfigError> {
    /// Beyond any model.
    const MAX_EXPERTS: u32 = 1 << 12;
    let experts = match config.optional_count("num_local_experts")? {
        Some(experts) => experts,
        None => config.optional_count("num_experts")?.unwrap_or(128),
    };
    config.without_effect(&["num_experts"]);
    if experts > MAX_EXPERTS {
        return impossible(format!("{experts} experts; at most {MAX_EXPERTS} are supported"));
    }
    Ok(Routing {
        experts,
        per_token: config.dim("num_experts_per_tok", 8)?,
        normalised: config.flag("norm_topk_prob", false)?,
        intermediate: config.dim("moe_intermediate_size", 768)?,
    })
}

/// Which layers have experts: every `decoder_sparse_step`-th, unless it is among `mlp_only_layers`.
fn sparse_layers(config: &Config<'_>, dims: &Dims) -> Result<Vec<bool>, ConfigError> {
    let step = config.dim("decoder_sparse_step", 1)?;
    let dense = config.numbers("mlp_only_layers")?.unwrap_or_default();
    let any = routing(config)?.experts > 0;
    let is_sparse = |i: u32| any && !dense.contains(&f64::from(i)) && (i + 1).is_multiple_of(step);
    Ok((0..dims.layers).map(is_sparse).collect())
}
