//! Which layers see everything and which a window.

use super::dims::impossible;
use crate::config::{Config, ConfigError};

/// An entry of `layer_types`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    Full,
    Sliding,
}

impl Reach {
    /// One full layer after every `period - 1` sliding ones.
    pub(super) fn periodic(layers: u32, period: u32) -> Vec<Self> {
        let full = |i: u32| (i + 1).is_multiple_of(period);
        (0..layers).map(|i| if full(i) { Self::Full } else { Self::Sliding }).collect()
    }

    /// Its name in configs.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Full => "full_attention",
            Self::Sliding => "sliding_attention",
        }
    }
}

/// `layer_types`, one for every layer; `None` where missing.
pub(super) fn layer_types(
    config: &Config<'_>,
    layers: u32,
) -> Result<Option<Vec<Reach>>, ConfigError> {
    let Some(types) = config.texts("layer_types")? else { return Ok(None) };
    if types.len() != layers as usize {
        return impossible(format!("layer_types names {} layers of {layers}", types.len()));
    }
    let reach = |kind| [Reach::Full, Reach::Sliding].into_iter().find(|reach| reach.name() == kind);
    let reaches: Option<Vec<Reach>> = types.into_iter().map(reach).collect();
    let supported = "full_attention, sliding_attention";
    reaches.map(Some).ok_or_else(|| config.unsupported("layer_types", supported))
}

/// `sliding_window`: null turns it off, only a missing key means the default.
pub(super) fn sliding_window(
    config: &Config<'_>,
    default: Option<u32>,
) -> Result<Option<u32>, ConfigError> {
    let window = config.optional_dim("sliding_window")?;
    Ok(if config.has("sliding_window") { window } else { default })
}

/// The windows of layers that slide or do not, as `layer_types` or else `usual` says.
pub(super) fn windows(
    config: &Config<'_>,
    layers: u32,
    window: Option<u32>,
    usual: impl Fn(u32) -> Reach,
) -> Result<Vec<Option<u32>>, ConfigError> {
    let reaches = layer_types(config, layers)?;
    let reaches = reaches.unwrap_or_else(|| (0..layers).map(usual).collect());
    if reaches.contains(&Reach::Sliding) && window.is_none() {
        return Err(config.unsupported("layer_types", "full_attention without a sliding_window"));
    }
    Ok(reaches.into_iter().map(|reach| window.filter(|_| reach == Reach::Sliding)).collect())
}

/// The windows of the Qwen family: `layer_types`, or all layers from `max_window_layers` on.
pub(super) fn qwen_windows(
    config: &Config<'_>,
    layers: u32,
) -> Result<Vec<Option<u32>>, ConfigError> {
    let used = config.flag("use_sliding_window", false)?;
    let window = sliding_window(config, Some(4096))?.filter(|_| used);
    let first = config.optional_count("max_window_layers")?.unwrap_or(28);
    let slides = |i| window.is_some() && i >= first;
    windows(config, layers, window, |i| if slides(i) { Reach::Sliding } else { Reach::Full })
}
