//! Architectures: each file turns a Hugging Face config into a [`Model`]; this table finds the file.
//!
//! Names and maths are those of transformers' modeling files, bundle names those of mlc_llm/model/*_loader.py.

mod decoder;
mod llama;
mod mistral;
mod qwen2;
mod qwen3;

use serde_json::Value;

use crate::config::{Config, ConfigError};
use crate::fp8::Fp8Scales;
use crate::model::{Head, Model};

/// One row of the table.
#[derive(Debug)]
pub struct Arch {
    /// `model_type` in config.json.
    pub model_type: &'static str,
    /// The class in `architectures`, a cross-check where it is one of this table.
    pub class: &'static str,
    describe: fn(&Config<'_>) -> Result<Model, ConfigError>,
}

/// Every architecture that can be converted and run.
pub const ARCHITECTURES: &[Arch] = &[llama::ARCH, mistral::ARCH, qwen2::ARCH, qwen3::ARCH];

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

/// The description of the model that a config.json stands for.
pub fn describe(config: &Value) -> Result<Model, ConfigError> {
    let arch = Arch::of(config)?;
    let reader = Config::new(config)?;
    Fp8Scales::read(&reader)?;
    let model = (arch.describe)(&reader)?;
    reader.all_read(arch.model_type)?;
    Ok(model)
}

/// How the weights of an fp8 checkpoint are scaled; `None` where it is not quantised.
pub fn fp8_scales(config: &Value) -> Result<Option<Fp8Scales>, ConfigError> {
    Fp8Scales::read(&Config::new(config)?)
}

/// Why a tensor of the checkpoint may be left out, or `None` where it may not.
pub fn skip_reason(model: &Model, tensor: &str) -> Option<&'static str> {
    if tensor.ends_with(".input_scale") || tensor.ends_with(".activation_scale") {
        Some("scales the activations of fp8 arithmetic; the weights do not need it")
    } else if tensor.ends_with(".rotary_emb.inv_freq") {
        Some("a table that is computed from the config")
    } else if model.head == Head::Tied && tensor == "lm_head.weight" {
        Some("the head is tied to the token embedding")
    } else {
        None
    }
}
