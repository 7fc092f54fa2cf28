//! What can be wrong with a config.

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
    /// Two spellings of a setting that do not mean the same.
    #[error("config keys `{key}` and `{other}` contradict each other")]
    Contradiction {
        /// Dotted path.
        key: String,
        /// Another.
        other: String,
    },
    /// Keys that nothing read: their meaning would be lost.
    #[error("config keys that `{architecture}` does not know: {}", .keys.join(", "))]
    Unread {
        /// The `model_type`.
        architecture: String,
        /// Dotted paths.
        keys: Vec<String>,
    },
    /// A key that was to be ignored, and that is none of those that nothing reads.
    #[error("config key `{key}` cannot be ignored: it is not there, or what it means is known")]
    NotIgnored {
        /// Dotted path.
        key: String,
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
    pub fn hint(&self) -> String {
        match self {
            Self::NotAnObject | Self::WrongType { .. } | Self::Impossible { .. } => {
                "config.json may be incomplete, changed by hand, or of another checkpoint: download it again"
                    .into()
            }
            Self::Missing { key } => {
                format!("add `{key}` to config.json with the value that the model was trained with")
            }
            Self::Unsupported { key, found, supported } => unsupported(key, found, supported),
            Self::Contradiction { .. } => {
                "remove the one that the model was not trained with from config.json".into()
            }
            Self::Unread { keys, .. } => {
                let first = keys.first().map_or("KEY", String::as_str);
                format!(
                    "each of these may change what the model computes; if you know that one does not, \
                     `convert --ignore-config-key {first}` goes on without it"
                )
            }
            Self::NotIgnored { .. } => {
                "--ignore-config-key takes the keys of the message that there are unknown ones".into()
            }
            Self::UnknownArchitecture { known, .. } => {
                format!("known architectures: {}", known.join(", "))
            }
        }
    }
}

fn unsupported(key: &str, found: &str, supported: &str) -> String {
    if key.ends_with("quant_method") {
        "convert the checkpoint that it was quantised from: codes are chosen from the original weights".into()
    } else if found == "\"dynamic\"" {
        // transformers changes no angle before the length passes this one.
        "up to max_position_embeddings this rope is `default`: with that the model is converted, for texts up to there"
            .into()
    } else if key == "architectures" {
        "`model_type` and `architectures` of config.json must name one model".into()
    } else {
        format!(
            "a model that was trained with {found} cannot be converted; if it was not, correct `{key}` ({supported})"
        )
    }
}
