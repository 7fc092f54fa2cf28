//! A reader of `config.json` that remembers what was read, so that no key is ignored silently.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// Keys that do not change what the model computes, and why each may be left unread.
const IGNORED: &[(&str, &str)] = &[
    ("_name_or_path", "where the checkpoint was saved from"),
    ("architectures", "checked against model_type by the table of architectures"),
    ("attention_dropout", "training only"),
    ("audio_config", "settings of the audio tower, which is left out"),
    ("audio_token_id", "stands for audio"),
    ("auto_map", "which code transformers would download; model_type says what it computes"),
    ("boa_token_id", "stands before audio"),
    ("boi_token_id", "stands before an image"),
    ("boi_token_index", "stands before an image"),
    ("bos_token_id", "read with the generation settings"),
    ("cache_implementation", "how transformers keeps its KV cache"),
    ("dtype", "tensors carry their own dtypes"),
    ("embd_pdrop", "training only"),
    ("eoa_token_id", "stands after audio"),
    ("eoa_token_index", "stands after audio"),
    ("eoi_token_id", "stands after an image"),
    ("eoi_token_index", "stands after an image"),
    ("eos_token_id", "read with the generation settings"),
    ("image_token_id", "stands for an image"),
    ("image_token_index", "stands for an image"),
    ("initializer_range", "training only"),
    ("is_llama_config", "a note of the SmolLM2 export"),
    ("mm_tokens_per_image", "how many tokens stand for an image"),
    ("model_type", "read by the table of architectures"),
    ("pad_token_id", "read with the generation settings"),
    ("pretraining_tp", "how the training was split; the result is the same to rounding"),
    ("resid_pdrop", "training only"),
    ("torch_dtype", "tensors carry their own dtypes"),
    ("transformers.js_config", "settings of another runtime"),
    ("transformers_version", "who wrote the file"),
    ("use_cache", "whether transformers keeps a KV cache"),
    ("video_token_id", "stands for a video"),
    ("vision_config", "settings of the vision tower, which is left out"),
    ("vision_soft_tokens_per_image", "how many tokens stand for an image"),
];

/// Why a config cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not a JSON object at all.
    #[error("config.json is not a JSON object")]
    NotAnObject,
    /// A key of the wrong type, or out of range.
    #[error("config key `{key}` is {found}, expected {expected}")]
    WrongType {
        /// Dotted path.
        key: String,
        /// What was expected.
        expected: &'static str,
        /// The JSON found.
        found: String,
    },
    /// A needed key without a default.
    #[error("config key `{key}` is missing")]
    Missing {
        /// Dotted path.
        key: String,
    },
    /// A value that has a meaning which is not implemented.
    #[error("config key `{key}` is {found}, which is not supported; supported: {supported}")]
    Unsupported {
        /// Dotted path.
        key: String,
        /// The JSON found.
        found: String,
        /// What would do.
        supported: String,
    },
    /// Keys that nothing read: their meaning would be lost.
    #[error("config keys that `{architecture}` does not know: {}", .keys.join(", "))]
    Unread {
        /// The `model_type`.
        architecture: String,
        /// Dotted paths.
        keys: Vec<String>,
    },
    /// No such architecture.
    #[error("architecture `{found}` is not supported")]
    UnknownArchitecture {
        /// The `model_type`, or a note that there is none.
        found: String,
        /// Every supported `model_type`.
        known: Vec<&'static str>,
    },
    /// Dimensions that cannot be.
    #[error("config: {reason}")]
    Impossible {
        /// Which dimensions and why.
        reason: String,
    },
}

impl ConfigError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::UnknownArchitecture { known, .. } => {
                format!("known architectures: {}", known.join(", "))
            }
            Self::Unread { .. } => {
                "each of these may change what the model computes; remove a key only if you know \
                                    that it does not"
                    .into()
            }
            _ => return None,
        })
    }
}

/// One object of the config; `prefix` is its dotted path.
#[derive(Debug)]
pub struct Config<'a> {
    prefix: String,
    map: &'a Map<String, Value>,
    read: RefCell<BTreeSet<&'a str>>,
}

impl<'a> Config<'a> {
    /// The top level of a config.
    pub fn new(value: &'a Value) -> Result<Self, ConfigError> {
        let map = value.as_object().ok_or(ConfigError::NotAnObject)?;
        Ok(Self { prefix: String::new(), map, read: RefCell::default() })
    }

    /// An object inside this one, or `None` where it is missing or null.
    pub fn section(&self, key: &str) -> Result<Option<Self>, ConfigError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let map = value.as_object().ok_or_else(|| self.wrong_type(key, "an object"))?;
        Ok(Some(Self { prefix: format!("{}{key}.", self.prefix), map, read: RefCell::default() }))
    }

    /// Whether the key stands in the object at all, be it null.
    pub fn has(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    /// A dimension; missing or null means `default`.
    pub fn dim(&self, key: &str, default: u32) -> Result<u32, ConfigError> {
        Ok(self.optional_dim(key)?.unwrap_or(default))
    }

    /// A dimension, `None` where missing or null.
    pub fn optional_dim(&self, key: &str) -> Result<Option<u32>, ConfigError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let dim = value.as_u64().and_then(|dim| u32::try_from(dim).ok()).filter(|&dim| dim > 0);
        dim.map(Some).ok_or_else(|| self.wrong_type(key, "a positive 32-bit integer"))
    }

    /// A count, which may be zero; `None` where missing or null.
    pub fn optional_count(&self, key: &str) -> Result<Option<u32>, ConfigError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let count = value.as_u64().and_then(|count| u32::try_from(count).ok());
        count.map(Some).ok_or_else(|| self.wrong_type(key, "a 32-bit integer"))
    }

    /// A number; missing or null means `default`.
    pub fn number(&self, key: &str, default: f64) -> Result<f64, ConfigError> {
        Ok(self.optional_number(key)?.unwrap_or(default))
    }

    /// A number that has no default.
    pub fn required_number(&self, key: &str) -> Result<f64, ConfigError> {
        self.optional_number(key)?.ok_or_else(|| ConfigError::Missing { key: self.path(key) })
    }

    /// A number, `None` where missing or null.
    pub fn optional_number(&self, key: &str) -> Result<Option<f64>, ConfigError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let number = value.as_f64().filter(|number| number.is_finite());
        number.map(Some).ok_or_else(|| self.wrong_type(key, "a number"))
    }

    /// A flag; missing or null means `default`.
    pub fn flag(&self, key: &str, default: bool) -> Result<bool, ConfigError> {
        let Some(value) = self.value(key) else { return Ok(default) };
        value.as_bool().ok_or_else(|| self.wrong_type(key, "true or false"))
    }

    /// A string, `None` where missing or null.
    pub fn text(&self, key: &str) -> Result<Option<&'a str>, ConfigError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong_type(key, "a string"))
    }

    /// A list of strings, `None` where missing or null.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<&'a str>>, ConfigError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let texts = value.as_array().and_then(|list| list.iter().map(Value::as_str).collect());
        texts.map(Some).ok_or_else(|| self.wrong_type(key, "a list of strings"))
    }

    /// A list of numbers, `None` where missing or null.
    pub fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>, ConfigError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let finite = |value: &Value| value.as_f64().filter(|number| number.is_finite());
        let numbers = value.as_array().and_then(|list| list.iter().map(finite).collect());
        numbers.map(Some).ok_or_else(|| self.wrong_type(key, "a list of numbers"))
    }

    /// Marks keys as read that mean nothing beside the others of this config.
    pub fn without_effect(&self, keys: &[&str]) {
        for key in keys {
            self.value(key);
        }
    }

    /// An error unless every key was read; `what` says of what.
    pub fn all_read(&self, what: &str) -> Result<(), ConfigError> {
        match self.unread() {
            keys if keys.is_empty() => Ok(()),
            keys => Err(ConfigError::Unread { architecture: what.into(), keys }),
        }
    }

    /// The value has a meaning that is not implemented.
    pub fn unsupported(&self, key: &str, supported: impl Into<String>) -> ConfigError {
        let found = self.map.get(key).map_or_else(|| "missing".into(), Value::to_string);
        ConfigError::Unsupported { key: self.path(key), found, supported: supported.into() }
    }

    /// Keys that nothing read and that are not on the list of keys without a meaning; null means "not set".
    fn unread(&self) -> Vec<String> {
        let read = self.read.borrow();
        let ignored = |key: &str| IGNORED.iter().any(|(name, _why)| *name == key);
        let unread = self.map.iter().filter(|(key, value)| {
            !value.is_null() && !read.contains(key.as_str()) && !ignored(key)
        });
        unread.map(|(key, _)| self.path(key)).collect()
    }

    fn value(&self, key: &str) -> Option<&'a Value> {
        let (key, value) = self.map.get_key_value(key)?;
        self.read.borrow_mut().insert(key);
        Some(value).filter(|value| !value.is_null())
    }

    fn path(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    fn wrong_type(&self, key: &str, expected: &'static str) -> ConfigError {
        let found = self.map.get(key).map_or_else(String::new, Value::to_string);
        ConfigError::WrongType { key: self.path(key), expected, found }
    }
}
