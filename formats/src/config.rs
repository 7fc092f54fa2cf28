//! A reader of `config.json` that remembers what was read, so that no key is ignored silently.

mod error;
mod harmless;

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

pub use error::ConfigError;
use harmless::is_harmless;

/// Keys that are left unread because somebody says so, by their dotted paths, and which of them were met.
#[derive(Debug, Default)]
pub struct IgnoredKeys<'a> {
    keys: &'a [String],
    met: RefCell<BTreeSet<String>>,
}

impl<'a> IgnoredKeys<'a> {
    /// None of them is met yet.
    pub fn new(keys: &'a [String]) -> Self {
        Self { keys, met: RefCell::default() }
    }

    fn holds(&self, path: &str) -> bool {
        let holds = self.keys.iter().any(|key| key == path);
        if holds {
            self.met.borrow_mut().insert(path.into());
        }
        holds
    }

    /// An error where a key was not met: what has a meaning has it, whatever anybody says.
    pub fn all_met(&self) -> Result<(), ConfigError> {
        match self.keys.iter().find(|key| !self.met.borrow().contains(*key)) {
            Some(key) => Err(ConfigError::NotIgnored { key: key.clone() }),
            None => Ok(()),
        }
    }
}

/// One object of the config; `prefix` is its dotted path.
#[derive(Debug)]
pub struct Config<'a> {
    prefix: String,
    map: &'a Map<String, Value>,
    ignored: &'a IgnoredKeys<'a>,
    read: RefCell<BTreeSet<&'a str>>,
}

impl<'a> Config<'a> {
    /// The top level of a config.
    pub fn new(value: &'a Value, ignored: &'a IgnoredKeys<'a>) -> Result<Self, ConfigError> {
        let map = value.as_object().ok_or(ConfigError::NotAnObject)?;
        Ok(Self { prefix: String::new(), map, ignored, read: RefCell::default() })
    }

    /// An object inside this one, or `None` where it is missing or null.
    pub fn section(&self, key: &str) -> Result<Option<Self>, ConfigError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let map = value.as_object().ok_or_else(|| self.wrong_type(key, "an object"))?;
        let prefix = format!("{}{key}.", self.prefix);
        Ok(Some(Self { prefix, map, ignored: self.ignored, read: RefCell::default() }))
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

    /// Two keys of the config, of which this object has the first, that do not mean the same.
    pub fn contradiction(&self, key: &str, other: impl Into<String>) -> ConfigError {
        ConfigError::Contradiction { key: self.path(key), other: other.into() }
    }

    /// Keys that nothing read and that may change something; null means "not set".
    fn unread(&self) -> Vec<String> {
        let read = self.read.borrow();
        // The list is of keys of a model: elsewhere the same word may mean something else.
        let is_model = matches!(self.prefix.as_str(), "" | "text_config.");
        let unread = self.map.iter().filter(|(key, value)| {
            let is_known = is_model && is_harmless(key, value);
            !is_known && !value.is_null() && !read.contains(key.as_str())
        });
        unread.map(|(key, _)| self.path(key)).filter(|path| !self.ignored.holds(path)).collect()
    }

    fn value(&self, key: &str) -> Option<&'a Value> {
        let (key, value) = self.map.get_key_value(key)?;
        self.read.borrow_mut().insert(key);
        Some(value).filter(|value| !value.is_null())
    }

    /// The dotted path of a key.
    pub fn path(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    fn wrong_type(&self, key: &str, expected: &'static str) -> ConfigError {
        let found = self.map.get(key).map_or_else(String::new, Value::to_string);
        ConfigError::WrongType { key: self.path(key), expected, found }
    }
}
