//! Reading the dimensions of a decoder.

use crate::config::{Config, ConfigError};
use crate::model::Activation;

/// Beyond any model; keeps the sizes of a hostile config from multiplying out of u32.
const MAX_DIM: u32 = 1 << 24;
const MAX_LAYERS: u32 = 1 << 12;

/// The defaults of a transformers config class, for keys that are missing.
pub(super) struct Defaults {
    pub vocab: u32,
    pub hidden: u32,
    pub intermediate: u32,
    pub layers: u32,
    pub heads: u32,
    /// `None`: as many as query heads.
    pub kv_heads: Option<u32>,
    /// `None`: `hidden / heads`.
    pub head_dim: Option<u32>,
    pub context: u32,
    pub eps: f64,
    pub tied: bool,
}

/// The dimensions of a decoder.
#[derive(Clone, Copy)]
pub(super) struct Dims {
    pub vocab: u32,
    pub hidden: u32,
    pub intermediate: u32,
    pub layers: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    pub context: u32,
    pub eps: f32,
    pub tied: bool,
}

impl Dims {
    pub(super) fn read(config: &Config<'_>, defaults: &Defaults) -> Result<Self, ConfigError> {
        let hidden = config.dim("hidden_size", defaults.hidden)?;
        let heads = config.dim("num_attention_heads", defaults.heads)?;
        let kv_heads = config.dim("num_key_value_heads", defaults.kv_heads.unwrap_or(heads))?;
        let head_dim = match config.optional_dim("head_dim")?.or(defaults.head_dim) {
            Some(head_dim) => head_dim,
            None if hidden % heads == 0 => hidden / heads,
            None => {
                return impossible(format!(
                    "hidden_size {hidden} is not a multiple of {heads} attention heads"
                ));
            }
        };
        let dims = Self {
            vocab: config.dim("vocab_size", defaults.vocab)?,
            hidden,
            intermediate: config.dim("intermediate_size", defaults.intermediate)?,
            layers: config.dim("num_hidden_layers", defaults.layers)?,
            heads,
            kv_heads,
            head_dim,
            context: config.dim("max_position_embeddings", defaults.context)?,
            eps: to_f32(config.number("rms_norm_eps", defaults.eps)?),
            tied: config.flag("tie_word_embeddings", defaults.tied)?,
        };
        dims.check()?;
        Ok(dims)
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let Self { vocab, hidden, intermediate, layers, heads, kv_heads, head_dim, .. } = *self;
        let widest = (u64::from(heads) + 2 * u64::from(kv_heads)) * u64::from(head_dim);
        if layers > MAX_LAYERS {
            impossible(format!("{layers} layers; at most {MAX_LAYERS} are supported"))
        } else if [vocab, hidden, intermediate].iter().any(|&dim| dim > MAX_DIM)
            || widest > u64::from(MAX_DIM)
        {
            impossible(format!("a dimension is larger than {MAX_DIM}"))
        } else if heads % kv_heads != 0 {
            impossible(format!(
                "{heads} attention heads cannot share {kv_heads} key-value heads evenly"
            ))
        } else if head_dim % 2 != 0 {
            impossible(format!("head_dim {head_dim} is odd, so it has no rotary pairs"))
        } else {
            Ok(())
        }
    }
}

/// The activation under `key`; missing or null means `default`.
pub(super) fn activation(
    config: &Config<'_>,
    key: &str,
    default: Activation,
) -> Result<Activation, ConfigError> {
    match config.text(key)? {
        None => Ok(default),
        Some("silu" | "swish") => Ok(Activation::Silu),
        Some("gelu_pytorch_tanh") => Ok(Activation::GeluTanh),
        Some(_) => Err(config.unsupported(key, "silu, gelu_pytorch_tanh")),
    }
}

/// A number as the model uses it.
#[expect(clippy::cast_possible_truncation, reason = "transformers uses these numbers in f32 too")]
pub(super) fn to_f32(number: f64) -> f32 {
    number as f32
}

pub(super) fn impossible<T>(reason: String) -> Result<T, ConfigError> {
    Err(ConfigError::Impossible { reason })
}
