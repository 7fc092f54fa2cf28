//! Phi-3, Phi-3.5 and Phi-4-mini: projections that are fused in the checkpoint, and LongRoPE over a part of each head.

use super::decoder::{Block, Qkv, model};
use super::dims::{Defaults, Dims, activation, impossible};
use super::rotary::{in_either_spelling, rope_type, share, theta};
use super::weights::{Names, Weights};
use super::windows::sliding_window;
use super::{Arch, Origin};
use crate::config::{Config, ConfigError};
use crate::model::{Activation, Model};
use crate::rope::{Rope, Scaling};

pub(super) const ARCH: Arch = Arch { model_type: "phi3", class: "Phi3ForCausalLM", describe };

/// transformers/models/phi3/configuration_phi3.py
const DEFAULTS: Defaults = Defaults {
    vocab: 32064,
    hidden: 3072,
    intermediate: 8192,
    layers: 32,
    heads: 32,
    kv_heads: None,
    head_dim: None,
    context: 4096,
    eps: 1e-5,
    tied: false,
};

/// mlc_llm/model/phi3/phi3_loader.py
const NAMES: Names = Names {
    prefix: "transformer.",
    renamed: &[
        ("embed_tokens.", "embd."),
        ("layers.", "h."),
        ("input_layernorm.", "ln."),
        ("self_attn.qkv_proj.", "mixer.qkv_proj."),
        ("self_attn.o_proj.", "mixer.out_proj."),
    ],
};

fn describe(config: &Config<'_>, origin: &Origin<'_>) -> Result<Model, ConfigError> {
    let dims = Dims::read(config, &DEFAULTS)?;
    let window = sliding_window(config, None)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let rope = read_rope(config, &dims)?;
    // Phi-4-mini names what it does not use.
    for key in ["attention_bias", "mlp_bias", "lm_head_bias"] {
        if config.flag(key, false)? {
            return Err(config.unsupported(key, "false"));
        }
    }
    for key in ["full_attn_mod", "interpolate_factor"] {
        if config.dim(key, 1)? != 1 {
            return Err(config.unsupported(key, "1"));
        }
    }
    let weights = Weights { names: NAMES, ..origin.weights(&dims) };
    Ok(model(origin, &dims, &weights, vec![rope], |_| Block {
        qkv: Qkv::Fused,
        window,
        activation,
        ..Block::llama(&dims)
    }))
}

fn read_rope(config: &Config<'_>, dims: &Dims) -> Result<Rope, ConfigError> {
    let original_context = config.dim("original_max_position_embeddings", 4096)?;
    let partial = config.number("partial_rotary_factor", 1.0)?;
    in_either_spelling(config, |section| {
        let theta = theta(config, "rope_theta", section.as_ref(), 10_000.0)?;
        let Some(section) = section else {
            let width = share(dims.head_dim, partial)?;
            return Ok(Rope { width, ..Rope::plain(dims.head_dim, theta) });
        };
        let partial = section.number("partial_rotary_factor", partial)?;
        let width = share(dims.head_dim, partial)?;
        let plain = Rope { width, ..Rope::plain(dims.head_dim, theta) };
        rope(&section, &plain, original_context, dims)
    })
}

/// A rope, scaled as its section says.
fn rope(
    section: &Config<'_>,
    plain: &Rope,
    original_context: u32,
    dims: &Dims,
) -> Result<Rope, ConfigError> {
    let (key, kind) = rope_type(section)?;
    // The key above the section has precedence over the one within.
    section.without_effect(&["original_max_position_embeddings"]);
    let scaling = match kind {
        "default" => Scaling::None,
        // Names from before it had one; its YaRN is none.
        "longrope" | "su" | "yarn" => long_rope(section, original_context, dims.context)?,
        _ => return Err(section.unsupported(key, "default, longrope")),
    };
    let rope = Rope { scaling, ..plain.clone() };
    section.all_read(&format!("rope type {kind}"))?;
    match &rope.scaling {
        Scaling::LongRope { short, long, .. }
            if [short, long].iter().any(|list| list.len() != rope.width as usize / 2) =>
        {
            impossible(format!(
                "{} short and {} long rope factors for {} rotary pairs",
                short.len(),
                long.len(),
                rope.width / 2
            ))
        }
        _ => Ok(rope),
    }
}

fn long_rope(
    section: &Config<'_>,
    original_context: u32,
    context: u32,
) -> Result<Scaling, ConfigError> {
    let factors = |key: &str| {
        section.numbers(key)?.ok_or_else(|| section.unsupported(key, "a list of numbers"))
    };
    let stretch = f64::from(context) / f64::from(original_context);
    let factor = section.number("factor", stretch)?;
    let usual = if factor <= 1.0 {
        1.0
    } else {
        (1.0 + factor.ln() / f64::from(original_context).ln()).sqrt()
    };
    Ok(Scaling::LongRope {
        short: factors("short_factor")?,
        long: factors("long_factor")?,
        original_context,
        attention_factor: section.number("attention_factor", usual)?,
    })
}
