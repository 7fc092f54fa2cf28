//! Reading rotary settings, which have two spellings: `rope_parameters` (transformers 5), per layer type where types
//! differ, and `rope_theta` with `rope_scaling` before that. transformers takes both in one file, and so a mix of them is
//! no fault unless they contradict each other.

use super::dims::{Dims, impossible};
use crate::config::{Config, ConfigError};
use crate::rope::{Rope, Scaling};

/// What rotary settings refer to, and stand for where they are missing.
#[derive(Clone, Copy)]
pub(super) struct RopeDefaults {
    pub head_dim: u32,
    pub theta: f64,
    /// Stands for a missing `original_max_position_embeddings`.
    pub context: u32,
}

impl RopeDefaults {
    pub(super) fn of(dims: &Dims, theta: f64) -> Self {
        Self { head_dim: dims.head_dim, theta, context: dims.context }
    }
}

/// The one rope of a model, in either spelling.
pub(super) fn read_rope(config: &Config<'_>, defaults: RopeDefaults) -> Result<Rope, ConfigError> {
    let partial = "partial_rotary_factor";
    if config.number(partial, 1.0)?.total_cmp(&1.0).is_ne() {
        return Err(config.unsupported(partial, "1"));
    }
    in_either_spelling(config, |section| {
        let theta = theta(config, "rope_theta", section.as_ref(), defaults.theta)?;
        rope(section, RopeDefaults { theta, ..defaults })
    })
}

/// What `read` makes of `rope_parameters`, `rope_scaling`, or of neither; where both are there it must be the same.
pub(super) fn in_either_spelling<'a>(
    config: &Config<'a>,
    read: impl Fn(Option<Config<'a>>) -> Result<Rope, ConfigError>,
) -> Result<Rope, ConfigError> {
    let [new, old] = [config.section("rope_parameters")?, config.section("rope_scaling")?];
    match (new, old) {
        (Some(new), Some(old)) => same(config, read(Some(new))?, &read(Some(old))?),
        (new, old) => read(new.or(old)),
    }
}

/// The rope of `rope_parameters`, if that of `rope_scaling` is no other.
pub(super) fn same(config: &Config<'_>, new: Rope, old: &Rope) -> Result<Rope, ConfigError> {
    if new == *old {
        return Ok(new);
    }
    Err(config.contradiction("rope_scaling", config.path("rope_parameters")))
}

/// `rope_theta` of a rope's section, or what an older `key` beside it says.
pub(super) fn theta(
    config: &Config<'_>,
    key: &str,
    section: Option<&Config<'_>>,
    default: f64,
) -> Result<f64, ConfigError> {
    let beside = config.optional_number(key)?;
    let Some(section) = section else { return Ok(beside.unwrap_or(default)) };
    match (section.optional_number("rope_theta")?, beside) {
        (Some(within), Some(beside)) if within.total_cmp(&beside).is_ne() => {
            Err(config.contradiction(key, section.path("rope_theta")))
        }
        (within, beside) => Ok(within.or(beside).unwrap_or(default)),
    }
}

/// A rope whose theta is known, scaled as its section says.
pub(super) fn rope(
    section: Option<Config<'_>>,
    defaults: RopeDefaults,
) -> Result<Rope, ConfigError> {
    let RopeDefaults { head_dim, theta, context } = defaults;
    let Some(section) = section else { return Ok(Rope::plain(head_dim, theta)) };
    section.without_effect(&["rope_theta"]);
    let (key, kind) = rope_type(&section)?;
    let partial = section.number("partial_rotary_factor", 1.0)?;
    if kind != "proportional" && partial.total_cmp(&1.0).is_ne() {
        return Err(section.unsupported("partial_rotary_factor", "1"));
    }
    let scaling = match kind {
        "default" => Scaling::None,
        "linear" => Scaling::Linear { factor: section.required_number("factor")? },
        "llama3" => Scaling::Llama3 {
            factor: section.required_number("factor")?,
            low_freq_factor: section.required_number("low_freq_factor")?,
            high_freq_factor: section.required_number("high_freq_factor")?,
            original_context: section.dim("original_max_position_embeddings", context)?,
        },
        "proportional" => proportional(defaults, partial, section.number("factor", 1.0)?)?.scaling,
        "yarn" => yarn(&section, context)?,
        _ => return Err(section.unsupported(key, "default, linear, llama3, yarn, proportional")),
    };
    section.all_read(&format!("rope type {kind}"))?;
    Ok(Rope { scaling, ..Rope::plain(head_dim, theta) })
}

/// transformers/modeling_rope_utils.py, `_compute_yarn_parameters`
fn yarn(section: &Config<'_>, context: u32) -> Result<Scaling, ConfigError> {
    let original_context = section.dim("original_max_position_embeddings", context)?;
    let factor = section.number("factor", f64::from(context) / f64::from(original_context))?;
    let stretch = |scale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 };
    let [scale, over] = [section.number("mscale", 0.0)?, section.number("mscale_all_dim", 0.0)?];
    let usual =
        if scale != 0.0 && over != 0.0 { stretch(scale) / stretch(over) } else { stretch(1.0) };
    let beta = |key: &str, usual: f64| {
        Ok(section.optional_number(key)?.filter(|beta| *beta != 0.0).unwrap_or(usual))
    };
    Ok(Scaling::Yarn {
        factor,
        beta_fast: beta("beta_fast", 32.0)?,
        beta_slow: beta("beta_slow", 1.0)?,
        original_context,
        truncate: section.flag("truncate", true)?,
        attention_factor: section.number("attention_factor", usual)?,
    })
}

/// A rope that turns the first pairs of a head only.
pub(super) fn proportional(
    RopeDefaults { head_dim, theta, .. }: RopeDefaults,
    partial: f64,
    factor: f64,
) -> Result<Rope, ConfigError> {
    let scaling = Scaling::Proportional { pairs: share(head_dim, partial)? / 2, factor };
    Ok(Rope { scaling, ..Rope::plain(head_dim, theta) })
}

/// The kind of a section, and the key that says it.
pub(super) fn rope_type<'a>(section: &Config<'a>) -> Result<(&'static str, &'a str), ConfigError> {
    Ok(match (section.text("rope_type")?, section.text("type")?) {
        (Some(kind), _) => ("rope_type", kind),
        (None, kind) => ("type", kind.unwrap_or("default")),
    })
}

/// How many values of a head a partial rotary factor leaves to be turned.
pub(super) fn share(head_dim: u32, factor: f64) -> Result<u32, ConfigError> {
    if !(0.0..=1.0).contains(&factor) {
        return impossible(format!("partial_rotary_factor {factor} is no share of a head"));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "rounded down, as transformers does; a share of a u32 fits it"
    )]
    Ok((f64::from(head_dim) * factor) as u32)
}
