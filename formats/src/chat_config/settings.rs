//! Reading a checkpoint's `config.json`: the text model's settings, with the two spellings of RoPE made one.

use serde_json::{Map, Value};

use super::ChatConfigError;

/// The settings of the text model: `text_config` of a model that has other parts too, else the whole file.
///
/// A `null` counts as absent: transformers writes it for "the class decides".
pub(super) struct Settings<'a> {
    pub(super) map: &'a Map<String, Value>,
    /// Whether [`Self::map`] is a `text_config`.
    pub(super) nested: bool,
    pub(super) model_type: &'a str,
    /// Positions that the model has, which the config need not say.
    pub(super) context: u64,
}

/// How positions become angles, from `rope_theta` and `rope_scaling` or from transformers 5's `rope_parameters`.
#[derive(Default)]
pub(super) struct Rope {
    pub(super) theta: Option<Value>,
    /// The scaling rule as the checkpoint states it; `None` for the plain series.
    pub(super) scaling: Option<Map<String, Value>>,
}

impl<'a> Settings<'a> {
    pub(super) fn new(config: &'a Value, context: u64) -> Result<Self, ChatConfigError> {
        let top = config.as_object().ok_or(ChatConfigError::NotAnObject)?;
        let text = top.get("text_config").and_then(Value::as_object);
        let missing =
            || ChatConfigError::MissingKey { key: "model_type", model_type: String::new() };
        let model_type = top.get("model_type").and_then(Value::as_str).ok_or_else(missing)?;
        Ok(Self { map: text.unwrap_or(top), nested: text.is_some(), model_type, context })
    }

    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    pub(super) fn or(&self, key: &str, default: impl Into<Value>) -> Value {
        self.get(key).cloned().unwrap_or_else(|| default.into())
    }

    pub(super) fn required(&self, key: &'static str) -> Result<Value, ChatConfigError> {
        self.get(key).cloned().ok_or_else(|| ChatConfigError::MissingKey {
            key,
            model_type: self.model_type.to_owned(),
        })
    }

    /// A whole number, `None` if absent.
    pub(super) fn count(&self, key: &'static str) -> Result<Option<u64>, ChatConfigError> {
        self.get(key)
            .map(|value| {
                value
                    .as_u64()
                    .ok_or_else(|| ChatConfigError::NotACount { key, value: value.to_string() })
            })
            .transpose()
    }

    pub(super) fn required_count(&self, key: &'static str) -> Result<u64, ChatConfigError> {
        self.required(key)?;
        Ok(self.count(key)?.unwrap_or_default())
    }

    pub(super) fn rope(&self) -> Rope {
        let parameters = self.get("rope_parameters").and_then(Value::as_object);
        // Models with sliding layers state one rule per kind of layer; MLC's classes have room for the full one's.
        let parameters = match parameters.and_then(|all| all.get("full_attention")) {
            Some(Value::Object(full)) => Some(full),
            _ => parameters,
        };
        let scaling = parameters.or_else(|| self.get("rope_scaling").and_then(Value::as_object));
        let theta =
            scaling.and_then(|rule| rule.get("rope_theta")).or_else(|| self.get("rope_theta"));
        let kind = scaling.and_then(|rule| rule.get("rope_type").or_else(|| rule.get("type")));
        let scaling = scaling.filter(|_| kind.is_some_and(|kind| kind != "default")).map(|rule| {
            let is_rule = |key: &str| !matches!(key, "rope_theta" | "partial_rotary_factor");
            let rule = rule.iter().filter(|(key, _)| is_rule(key));
            rule.map(|(key, value)| (key.clone(), value.clone())).collect()
        });
        Rope { theta: theta.cloned(), scaling }
    }

    /// A setting that transformers 5 moved into `rope_parameters`.
    pub(super) fn rotary_or(&self, key: &str, default: impl Into<Value>) -> Value {
        let moved = self.get("rope_parameters").and_then(|all| all.get(key));
        self.get(key).or(moved).cloned().unwrap_or_else(|| default.into())
    }
}

impl Rope {
    pub(super) fn theta_or(&self, default: impl Into<Value>) -> Value {
        self.theta.clone().unwrap_or_else(|| default.into())
    }
}
