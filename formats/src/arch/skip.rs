//! Tensors that are left out of a bundle, each for a reason that is reported.

use crate::model::{Head, Model};

/// Parts of multimodal checkpoints that text does not pass through, with or without `model.` before them.
const OTHER_MODALITIES: &[(&str, &str)] = &[
    ("audio_tower.", "part of the audio tower; bundles hold text models"),
    ("embed_audio.", "leads from audio into the text model; bundles hold text models"),
    ("embed_vision.", "leads from images into the text model; bundles hold text models"),
    ("multi_modal_projector.", "leads from images into the text model; bundles hold text models"),
    ("vision_tower.", "part of the vision tower; bundles hold text models"),
];

/// Ranges of activations that quantised runtimes clip to.
const CLIP_RANGES: &[&str] = &["input_min", "input_max", "output_min", "output_max"];

/// Why a tensor of the checkpoint may be left out, or `None` where it may not.
pub fn skip_reason(model: &Model, tensor: &str) -> Option<&'static str> {
    let inner = tensor.strip_prefix("model.").unwrap_or(tensor);
    let other = OTHER_MODALITIES.iter().find(|(start, _)| inner.starts_with(start));
    let is_head = tensor == "lm_head.weight" || tensor.ends_with(".lm_head.weight");
    if let Some((_, reason)) = other {
        Some(reason)
    } else if tensor.ends_with(".input_scale") || tensor.ends_with(".activation_scale") {
        Some("scales the activations of fp8 arithmetic; the weights do not need it")
    } else if tensor.ends_with(".rotary_emb.inv_freq") {
        Some("a table that is computed from the config")
    } else if CLIP_RANGES.iter().any(|range| tensor.ends_with(range)) {
        Some("a range of activations, which are not clipped")
    } else if model.head == Head::Tied && is_head {
        Some("the head is tied to the token embedding")
    } else if is_unused_kv(model, tensor) {
        Some("the layer uses the keys and values of an earlier one")
    } else {
        None
    }
}

/// Whether a tensor makes keys or values in a layer that stores none.
fn is_unused_kv(model: &Model, tensor: &str) -> bool {
    let Some((_, path)) = tensor.split_once("layers.") else { return false };
    let Some((layer, module)) = path.split_once('.') else { return false };
    let layer = layer.parse().ok().and_then(|layer: usize| model.layers.get(layer));
    let makes_kv = ["k_proj.", "v_proj.", "k_norm.", "v_norm."]
        .iter()
        .any(|name| module.strip_prefix("self_attn.").is_some_and(|rest| rest.starts_with(name)));
    let attention = layer.and_then(|layer| layer.mixer.attention());
    makes_kv && attention.is_some_and(|attention| !attention.stores_kv())
}
