//! What each layer of a Gemma 4 is like.

use crate::arch::decoder::Qkv;
use crate::arch::dims::{Dims, impossible};
use crate::arch::rotary::{RopeDefaults, proportional, rope};
use crate::arch::windows::{Reach, layer_types};
use crate::config::{Config, ConfigError};
use crate::model::RopeId;
use crate::rope::Rope;

/// Of full layers, where no key says.
const DEFAULT_GLOBAL_HEAD_DIM: u32 = 512;

/// How a layer differs from its neighbours.
pub(super) struct Shape {
    pub reach: Reach,
    pub dims: Dims,
    pub qkv: Qkv,
}

/// The shapes of all layers.
pub(super) fn shapes(config: &Config<'_>, dims: &Dims) -> Result<Vec<Shape>, ConfigError> {
    let reaches = layer_types(config, dims.layers)?;
    let mut reaches = reaches.unwrap_or_else(|| Reach::periodic(dims.layers, 6));
    // As transformers has it, whatever the config says.
    if let Some(last) = reaches.last_mut() {
        *last = Reach::Full;
    }
    let key_is_value = config.flag("attention_k_eq_v", false)?;
    let shared = config.optional_count("num_kv_shared_layers")?.unwrap_or(0);
    let Some(first_shared) = dims.layers.checked_sub(shared) else {
        return impossible(format!("{shared} of {} layers share keys and values", dims.layers));
    };
    let wide = if config.flag("use_double_wide_mlp", false)? { 2 } else { 1 };
    let heads = layer_heads(config, dims, &reaches, key_is_value)?;
    let mut shapes = Vec::new();
    for (i, (&reach, [head_dim, kv_heads])) in (0..).zip(reaches.iter().zip(heads)) {
        let mut dims = Dims { kv_heads, head_dim, ..*dims };
        let mut qkv = match reach {
            Reach::Full if key_is_value => Qkv::KeyIsValue,
            _ => Qkv::Separate,
        };
        if i >= first_shared {
            let owner = (0..first_shared).rev().find(|&owner| reaches[owner as usize] == reach);
            let Some(owner) = owner else {
                return impossible(format!("layer {i} has no layer to share keys and values with"));
            };
            qkv = Qkv::Shared(owner);
            dims.intermediate = dims.intermediate.saturating_mul(wide);
        }
        dims.check()?;
        shapes.push(Shape { reach, dims, qkv });
    }
    Ok(shapes)
}

/// `[head_dim, kv_heads]` of every layer: `per_layer_config`, or the older keys for all full layers.
fn layer_heads(
    config: &Config<'_>,
    dims: &Dims,
    reaches: &[Reach],
    key_is_value: bool,
) -> Result<Vec<[u32; 2]>, ConfigError> {
    let global_head_dim = config.dim("global_head_dim", DEFAULT_GLOBAL_HEAD_DIM)?;
    let global_kv_heads = config.optional_dim("num_global_key_value_heads")?;
    let Some(layers) = config.section("per_layer_config")? else {
        let kv_heads = global_kv_heads.filter(|_| key_is_value).unwrap_or(dims.kv_heads);
        return Ok(reaches
            .iter()
            .map(|reach| match reach {
                Reach::Full => [global_head_dim, kv_heads],
                Reach::Sliding => [dims.head_dim, dims.kv_heads],
            })
            .collect());
    };
    let mut heads = Vec::with_capacity(reaches.len());
    for i in 0..reaches.len() {
        heads.push(match layers.section(&i.to_string())? {
            None => [dims.head_dim, dims.kv_heads],
            Some(layer) => {
                let head_dim = layer.dim("head_dim", dims.head_dim)?;
                let kv_heads = layer.dim("num_key_value_heads", dims.kv_heads)?;
                layer.all_read("per_layer_config")?;
                [head_dim, kv_heads]
            }
        });
    }
    layers.all_read("per_layer_config")?;
    Ok(heads)
}

/// The rope of every layer; layers of one kind and head width share theirs.
pub(super) fn rope_ids(
    config: &Config<'_>,
    shapes: &[Shape],
    ropes: &mut Vec<Rope>,
) -> Result<Vec<RopeId>, ConfigError> {
    let sections = config.section("rope_parameters")?;
    let mut ids = Vec::with_capacity(shapes.len());
    for Shape { reach, dims, .. } in shapes {
        let rope = layer_rope(sections.as_ref(), *reach, dims)?;
        let known = ropes.iter().position(|other| *other == rope);
        let id = known.unwrap_or_else(|| {
            ropes.push(rope);
            ropes.len() - 1
        });
        ids.push(RopeId(u32::try_from(id).unwrap_or(u32::MAX)));
    }
    if let Some(sections) = sections {
        // Both are written, also where all layers are of one kind.
        for reach in [Reach::Full, Reach::Sliding] {
            sections.section(reach.name())?;
        }
        sections.all_read("rope_parameters")?;
    }
    Ok(ids)
}

fn layer_rope(
    sections: Option<&Config<'_>>,
    reach: Reach,
    dims: &Dims,
) -> Result<Rope, ConfigError> {
    let theta = match reach {
        Reach::Full => 1_000_000.0,
        Reach::Sliding => 10_000.0,
    };
    let defaults = RopeDefaults::of(dims, theta);
    let Some(sections) = sections else {
        return match reach {
            Reach::Full => proportional(defaults, 0.25, 1.0),
            Reach::Sliding => Ok(Rope::plain(dims.head_dim, theta)),
        };
    };
    let section = sections.section(reach.name())?;
    let theta = match &section {
        Some(section) => section.number("rope_theta", theta)?,
        None => theta,
    };
    rope(section, RopeDefaults { theta, ..defaults })
}
