//! Architectures: each file turns a Hugging Face config into a [`Model`]; this table finds the file.
//!
//! Names and maths are those of transformers' modeling files, bundle names those of mlc_llm/model/*_loader.py.

mod decoder;
mod dims;
mod gemma2;
mod gemma3;
mod gemma4;
mod granite;
mod lfm2;
mod llama;
mod mistral;
mod olmo2;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen3_moe;
mod rotary;
mod skip;
mod smollm3;
#[cfg(test)]
mod tests;
mod weights;
mod windows;

use serde_json::Value;

use crate::config::{Config, ConfigError, IgnoredKeys};
use crate::fp8::Fp8Scales;
use crate::model::Model;
use dims::Dims;
pub use skip::skip_reason;
use weights::{Names, NormWeight, Weights};

/// One row of the table.
#[derive(Debug)]
pub struct Arch {
    /// `model_type` in config.json.
    pub model_type: &'static str,
    /// The class in `architectures`, a cross-check where it is one of this table.
    pub class: &'static str,
    describe: fn(&Config<'_>, &Origin<'_>) -> Result<Model, ConfigError>,
}

/// Every architecture that can be converted and run.
pub const ARCHITECTURES: &[Arch] = &[
    gemma2::ARCH,
    gemma3::TEXT,
    gemma3::MULTIMODAL,
    gemma4::TEXT,
    gemma4::MULTIMODAL,
    granite::ARCH,
    lfm2::ARCH,
    llama::ARCH,
    mistral::ARCH,
    olmo2::ARCH,
    phi3::ARCH,
    qwen2::ARCH,
    qwen3::ARCH,
    qwen3_moe::ARCH,
    smollm3::ARCH,
];

/// What stands before the decoder's tensors, by itself or inside of a multimodal model, in the order of preference.
const ROOTS: &[&str] =
    &["model.", "model.language_model.", "language_model.model.", "language_model.", ""];

/// What a description has from outside of the config.
struct Origin<'a> {
    /// `model_type`.
    architecture: &'static str,
    /// What stands before the decoder's tensors in the checkpoint.
    root: &'a str,
}

impl<'a> Origin<'a> {
    /// Weights that the bundle names as the checkpoint does.
    fn weights(&self, dims: &Dims) -> Weights<'a> {
        Weights {
            root: self.root,
            names: Names::USUAL,
            norm_weight: NormWeight::Plain,
            eps: dims.eps,
        }
    }
}

impl Arch {
    /// The row for a config.
    pub fn of(config: &Value) -> Result<&'static Self, ConfigError> {
        let model_type = config.get("model_type").and_then(Value::as_str);
        let found = ARCHITECTURES.iter().find(|arch| Some(arch.model_type) == model_type);
        let arch = found.ok_or_else(|| ConfigError::UnknownArchitecture {
            found: model_type.unwrap_or("none (no `model_type` key)").into(),
            known: ARCHITECTURES.iter().map(|arch| arch.model_type).collect(),
        })?;
        let class =
            config.get("architectures").and_then(|list| list.get(0)).and_then(Value::as_str);
        match ARCHITECTURES.iter().find(|other| Some(other.class) == class) {
            Some(other) if other.class != arch.class => Err(ConfigError::Unsupported {
                key: "architectures".into(),
                found: other.class.into(),
                supported: format!("{} for model_type `{}`", arch.class, arch.model_type),
            }),
            _ => Ok(arch),
        }
    }
}

/// The description of the model that a config.json stands for. `has` says whether the checkpoint has a tensor of that
/// name: multimodal checkpoints put different things before the names of their decoder.
pub fn describe(config: &Value, has: impl Fn(&str) -> bool) -> Result<Model, ConfigError> {
    describe_ignoring(config, &[], has)
}

/// The same, leaving keys unread that nothing would read: `ignored` has their dotted paths.
pub fn describe_ignoring(
    config: &Value,
    ignored: &[String],
    has: impl Fn(&str) -> bool,
) -> Result<Model, ConfigError> {
    let arch = Arch::of(config)?;
    let root = ROOTS.iter().find(|root| has(&format!("{root}embed_tokens.weight")));
    // Without any, each tensor is reported missing under its usual name.
    let origin = Origin { architecture: arch.model_type, root: root.unwrap_or(&ROOTS[0]) };
    let ignored = IgnoredKeys::new(ignored);
    let reader = Config::new(config, &ignored)?;
    Fp8Scales::read(&reader)?;
    let text = reader.section("text_config")?;
    let model = (arch.describe)(text.as_ref().unwrap_or(&reader), &origin)?;
    if let Some(text) = &text {
        text.all_read(arch.model_type)?;
        // Both say that the head is tied, and all of these heads are.
        reader.without_effect(&["tie_word_embeddings"]);
    }
    reader.all_read(arch.model_type)?;
    ignored.all_met()?;
    // What adds up in no way must not reach the converter.
    model.validate().map_err(|error| ConfigError::Impossible { reason: error.to_string() })?;
    Ok(model)
}

/// How the weights of an fp8 checkpoint are scaled; `None` where it is not quantised.
pub fn fp8_scales(config: &Value, ignored: &[String]) -> Result<Option<Fp8Scales>, ConfigError> {
    Fp8Scales::read(&Config::new(config, &IgnoredKeys::new(ignored))?)
}
