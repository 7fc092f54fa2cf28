//! What the decoders of this table share: reading dimensions and rotary settings, and naming the usual weights.

use crate::config::{Config, ConfigError};
use crate::model::{
    Activation, Attention, Head, Layer, Linear, Mlp, Model, Norm, QkNorm, Recipe, Role, RopeId,
    Source, Weight,
};
use crate::rope::{Rope, Scaling};

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
    pub rope_theta: f64,
    pub tied: bool,
}

/// The dimensions of a decoder.
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
    pub rope: Rope,
    pub tied: bool,
}

/// What differs between decoders of the usual build: pre-norms, grouped-query attention, gated MLP.
pub(super) struct Block {
    /// Bundle name of the fused projection, `qkv_proj` or `c_attn`.
    pub qkv_name: &'static str,
    pub bias: Biases,
    pub qk_norm: bool,
    pub window: Option<u32>,
}

/// Which projections have biases.
#[derive(Clone, Copy)]
pub(super) struct Biases {
    pub qkv: bool,
    pub out: bool,
    pub mlp: bool,
}

impl Biases {
    pub(super) const NONE: Self = Self { qkv: false, out: false, mlp: false };
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
        #[expect(
            clippy::cast_possible_truncation,
            reason = "eps is used in f32, as transformers does"
        )]
        let eps = config.number("rms_norm_eps", defaults.eps)? as f32;
        let dims = Self {
            vocab: config.dim("vocab_size", defaults.vocab)?,
            hidden,
            intermediate: config.dim("intermediate_size", defaults.intermediate)?,
            layers: config.dim("num_hidden_layers", defaults.layers)?,
            heads,
            kv_heads,
            head_dim,
            context: config.dim("max_position_embeddings", defaults.context)?,
            eps,
            rope: read_rope(config, head_dim, defaults.rope_theta)?,
            tied: config.flag("tie_word_embeddings", defaults.tied)?,
        };
        dims.check()?;
        silu(config)?;
        Ok(dims)
    }

    fn check(&self) -> Result<(), ConfigError> {
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

    /// A model of `layers` blocks, `block` saying how each differs.
    pub(super) fn model(
        self,
        architecture: &str,
        head: Head,
        block: impl Fn(u32) -> Block,
    ) -> Model {
        Model {
            architecture: architecture.into(),
            vocab: self.vocab,
            hidden: self.hidden,
            context: self.context,
            embed: self.embed(),
            layers: (0..self.layers).map(|i| self.layer(i, &block(i))).collect(),
            norm: self.norm("model.norm", self.hidden),
            head,
            ropes: vec![self.rope],
        }
    }

    pub(super) fn embed(&self) -> Weight {
        let name = "model.embed_tokens.weight";
        Weight::copy(name, name, &[self.vocab.into(), self.hidden.into()], Role::Embedding)
    }

    /// The usual head: tied, or `lm_head`.
    pub(super) fn head(&self) -> Head {
        if self.tied { Head::Tied } else { self.own_head("lm_head.weight") }
    }

    /// A head of its own, made from `tensor`.
    pub(super) fn own_head(&self, tensor: &str) -> Head {
        let shape = [self.vocab.into(), self.hidden.into()];
        let weight = Weight::copy("lm_head.weight", tensor, &shape, Role::Head);
        Head::Own(Box::new(Linear { weight, bias: None }))
    }

    fn layer(&self, i: u32, block: &Block) -> Layer {
        let at = format!("model.layers.{i}");
        let attn = format!("{at}.self_attn");
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let qkv = [("q_proj", q), ("k_proj", kv), ("v_proj", kv)];
        let gate_up = [("gate_proj", self.intermediate), ("up_proj", self.intermediate)];
        Layer {
            attention_norm: self.norm(&format!("{at}.input_layernorm"), self.hidden),
            attention: Attention {
                heads: self.heads,
                kv_heads: self.kv_heads,
                head_dim: self.head_dim,
                scale: 1.0 / (self.head_dim as f32).sqrt(),
                window: block.window,
                rope: RopeId(0),
                qk_norm: block.qk_norm.then(|| QkNorm {
                    q: self.norm(&format!("{attn}.q_norm"), self.head_dim),
                    k: self.norm(&format!("{attn}.k_norm"), self.head_dim),
                }),
                qkv: stacked(&attn, block.qkv_name, &qkv, self.hidden, block.bias.qkv),
                out: stacked(&attn, "o_proj", &[("o_proj", self.hidden)], q, block.bias.out),
            },
            mlp_norm: self.norm(&format!("{at}.post_attention_layernorm"), self.hidden),
            mlp: Mlp {
                activation: Activation::Silu,
                gate_up: stacked(
                    &format!("{at}.mlp"),
                    "gate_up_proj",
                    &gate_up,
                    self.hidden,
                    block.bias.mlp,
                ),
                down: stacked(
                    &format!("{at}.mlp"),
                    "down_proj",
                    &[("down_proj", self.hidden)],
                    self.intermediate,
                    block.bias.mlp,
                ),
            },
        }
    }

    fn norm(&self, name: &str, width: u32) -> Norm {
        let name = format!("{name}.weight");
        Norm {
            weight: Weight::copy(name.clone(), name, &[width.into()], Role::Vector),
            eps: self.eps,
        }
    }
}

/// Projections `parts` (name and rows) of the module `at`, stacked into one that the bundle calls `name`.
fn stacked(at: &str, name: &str, parts: &[(&str, u32)], columns: u32, bias: bool) -> Linear {
    let weight = |suffix: &str, columns: Option<u32>, role| {
        let shape =
            |rows: u32| std::iter::once(rows).chain(columns).map(u64::from).collect::<Vec<_>>();
        let source = |&(part, rows): &(&str, u32)| Source {
            tensor: format!("{at}.{part}.{suffix}"),
            shape: shape(rows),
        };
        let mut sources: Vec<Source> = parts.iter().map(source).collect();
        Weight {
            name: format!("{at}.{name}.{suffix}"),
            shape: shape(parts.iter().map(|(_, rows)| rows).sum()),
            role,
            recipe: if parts.len() == 1 {
                Recipe::Copy(sources.remove(0))
            } else {
                Recipe::Rows(sources)
            },
        }
    };
    Linear {
        weight: weight("weight", Some(columns), Role::Linear),
        bias: bias.then(|| weight("bias", None, Role::Vector)),
    }
}

/// The layers' windows of the Qwen family: `layer_types`, or all layers from `max_window_layers` on.
pub(super) fn qwen_windows(
    config: &Config<'_>,
    layers: u32,
) -> Result<Vec<Option<u32>>, ConfigError> {
    let used = config.flag("use_sliding_window", false)?;
    let size = config.optional_dim("sliding_window")?;
    let size = if config.has("sliding_window") { size } else { Some(4096) };
    let window = size.filter(|_| used);
    let first = config.optional_count("max_window_layers")?.unwrap_or(28);
    let Some(types) = config.texts("layer_types")? else {
        return Ok((0..layers).map(|i| window.filter(|_| i >= first)).collect());
    };
    if types.len() != layers as usize {
        return impossible(format!("layer_types names {} layers of {layers}", types.len()));
    }
    let each = types.into_iter().map(|kind| match (kind, window) {
        ("full_attention", _) => Ok(None),
        ("sliding_attention", Some(window)) => Ok(Some(window)),
        _ => Err(config.unsupported(
            "layer_types",
            "full_attention, or sliding_attention with a sliding_window",
        )),
    });
    each.collect()
}

/// Rotary settings in either spelling: `rope_parameters` (transformers 5) or `rope_theta` with `rope_scaling`.
fn read_rope(config: &Config<'_>, head_dim: u32, default_theta: f64) -> Result<Rope, ConfigError> {
    let (theta, section) = match config.section("rope_parameters")? {
        Some(section) => (section.number("rope_theta", default_theta)?, Some(section)),
        None => (config.number("rope_theta", default_theta)?, config.section("rope_scaling")?),
    };
    let Some(section) = section else {
        return Ok(Rope { head_dim, theta, scaling: Scaling::None });
    };
    let (key, kind) = match (section.text("rope_type")?, section.text("type")?) {
        (Some(kind), _) => ("rope_type", kind),
        (None, kind) => ("type", kind.unwrap_or("default")),
    };
    let scaling = match kind {
        "default" => Scaling::None,
        "linear" => Scaling::Linear { factor: section.required_number("factor")? },
        "llama3" => Scaling::Llama3 {
            factor: section.required_number("factor")?,
            low_freq_factor: section.required_number("low_freq_factor")?,
            high_freq_factor: section.required_number("high_freq_factor")?,
            original_context: section.dim("original_max_position_embeddings", 8192)?,
        },
        _ => return Err(section.unsupported(key, "default, linear, llama3")),
    };
    section.all_read(&format!("rope type {kind}"))?;
    Ok(Rope { head_dim, theta, scaling })
}

fn silu(config: &Config<'_>) -> Result<(), ConfigError> {
    match config.text("hidden_act")? {
        None | Some("silu" | "swish") => Ok(()),
        _ => Err(config.unsupported("hidden_act", "silu")),
    }
}

fn impossible<T>(reason: String) -> Result<T, ConfigError> {
    Err(ConfigError::Impossible { reason })
}
