//! `model_config`: the fields of MLC-LLM's configuration classes, in their order and after their defaults.
//!
//! One function per class of `python/mlc_llm/model/<name>/<name>_model.py`. A key that the class demands but that
//! transformers may leave out takes the default of transformers' class. Numbers keep the form they have in `config.json`:
//! `1000000` and `1000000.0` are different texts.

use serde_json::{Map, Value, json};

use super::ChatConfigError;
use super::settings::Settings;

/// `gen_config` sets it whatever the class says.
const MAX_BATCH_SIZE: u64 = 128;

/// A class's fields and what the top level of the file repeats from it.
pub(super) struct ModelConfig {
    pub(super) fields: Value,
    pub(super) vocab: u64,
    /// Positions of the context; `None` where a sliding window takes its place.
    pub(super) context: Option<u64>,
    /// Positions of the sliding window that replaces the context.
    pub(super) window: Option<u64>,
    pub(super) prefill: u64,
    /// First tokens that a sliding window keeps.
    pub(super) sink: Option<u64>,
}

/// Which class describes `model_type`; without one the checkpoint's settings are kept as they are.
pub(super) fn model_config(settings: &Settings) -> Result<ModelConfig, ChatConfigError> {
    match settings.model_type {
        "llama" => llama(settings),
        "mistral" => mistral(settings),
        "qwen2" => qwen2(settings),
        "qwen3" => qwen3(settings),
        "qwen3_moe" => qwen3_moe(settings),
        "gemma" => gemma(settings),
        "gemma2" => gemma2(settings),
        "gemma3" | "gemma3_text" => gemma3(settings),
        "phi3" => phi3(settings),
        _ => unknown(settings),
    }
}

impl ModelConfig {
    fn full(fields: Value, vocab: u64, context: u64, prefill: u64) -> Self {
        Self { fields, vocab, context: Some(context), window: None, prefill, sink: None }
    }
}

fn llama(c: &Settings) -> Result<ModelConfig, ChatConfigError> {
    let (vocab, context, rope) = (c.required_count("vocab_size")?, c.context, c.rope());
    let prefill = context.min(8192);
    let fields = json!({
        "hidden_size": c.required("hidden_size")?,
        "intermediate_size": c.required("intermediate_size")?,
        "num_attention_heads": c.required("num_attention_heads")?,
        "num_hidden_layers": c.required("num_hidden_layers")?,
        "rms_norm_eps": c.or("rms_norm_eps", 1e-6),
        "vocab_size": vocab,
        "tie_word_embeddings": c.or("tie_word_embeddings", false),
        "position_embedding_base": rope.theta_or(10_000),
        // MLC knows "llama3" only and drops or refuses the others; a rule that is stated is written.
        "rope_scaling": rope.scaling,
        "context_window_size": context,
        "prefill_chunk_size": prefill,
        "num_key_value_heads": key_value_heads(c)?,
        "head_dim": head_dim(c)?,
        "tensor_parallel_shards": 1,
        "pipeline_parallel_stages": 1,
        "max_batch_size": MAX_BATCH_SIZE,
        "disaggregation": false,
    });
    Ok(ModelConfig::full(fields, vocab, context, prefill))
}

fn mistral(c: &Settings) -> Result<ModelConfig, ChatConfigError> {
    const SINK: u64 = 4;
    let vocab = c.required_count("vocab_size")?;
    let window = c.count("sliding_window")?;
    let context = if window.is_some() { None } else { Some(c.context) };
    let prefill = window.or(context).unwrap_or(8192).min(8192);
    let fields = json!({
        "hidden_size": c.required("hidden_size")?,
        "intermediate_size": c.required("intermediate_size")?,
        "num_attention_heads": c.required("num_attention_heads")?,
        "num_hidden_layers": c.required("num_hidden_layers")?,
        "rms_norm_eps": c.or("rms_norm_eps", 1e-6),
        "vocab_size": vocab,
        "position_embedding_base": c.rope().theta_or(10_000),
        "num_key_value_heads": key_value_heads(c)?,
        "head_dim": head_dim(c)?,
        "context_window_size": size(context),
        "sliding_window_size": size(window),
        "prefill_chunk_size": prefill,
        "attention_sink_size": SINK,
        "tensor_parallel_shards": 1,
        "max_batch_size": MAX_BATCH_SIZE,
    });
    Ok(ModelConfig { fields, vocab, context, window, prefill, sink: Some(SINK) })
}

fn qwen2(c: &Settings) -> Result<ModelConfig, ChatConfigError> {
    let (vocab, context) = (c.required_count("vocab_size")?, c.context);
    let prefill = context.min(2048);
    let fields = json!({
        "hidden_act": c.or("hidden_act", "silu"),
        "hidden_size": c.required("hidden_size")?,
        "intermediate_size": c.required("intermediate_size")?,
        "num_attention_heads": c.required("num_attention_heads")?,
        "num_hidden_layers": c.required("num_hidden_layers")?,
        "num_key_value_heads": key_value_heads(c)?,
        "rms_norm_eps": c.or("rms_norm_eps", 1e-6),
        "rope_theta": c.rope().theta_or(10_000.0),
        "vocab_size": vocab,
        "tie_word_embeddings": c.or("tie_word_embeddings", false),
        "context_window_size": context,
        "prefill_chunk_size": prefill,
        "tensor_parallel_shards": 1,
        "head_dim": head_dim(c)?,
        "dtype": "float32",
        "max_batch_size": MAX_BATCH_SIZE,
    });
    Ok(ModelConfig::full(fields, vocab, context, prefill))
}

fn qwen3(c: &Settings) -> Result<ModelConfig, ChatConfigError> {
    let (vocab, context) = (c.required_count("vocab_size")?, c.context);
    let prefill = context.min(2048);
    let fields = json!({
        "hidden_act": c.or("hidden_act", "silu"),
        "hidden_size": c.required("hidden_size")?,
        "intermediate_size": c.required("intermediate_size")?,
        "attention_bias": c.or("attention_bias", false),
        "num_attention_heads": c.required("num_attention_heads")?,
        "num_hidden_layers": c.required("num_hidden_layers")?,
        "num_key_value_heads": key_value_heads(c)?,
        "rms_norm_eps": c.or("rms_norm_eps", 1e-6),
        "rope_theta": c.rope().theta_or(10_000.0),
        "vocab_size": vocab,
        "tie_word_embeddings": c.or("tie_word_embeddings", false),
        "context_window_size": context,
        "prefill_chunk_size": prefill,
        "tensor_parallel_shards": 1,
        "head_dim": c.or("head_dim", 128),
        "dtype": "float32",
        "max_batch_size": MAX_BATCH_SIZE,
        "weight_block_size": null,
    });
    Ok(ModelConfig::full(fields, vocab, context, prefill))
}

fn qwen3_moe(c: &Settings) -> Result<ModelConfig, ChatConfigError> {
    let mut config = qwen3(c)?;
    let experts = c.get("num_experts").or_else(|| c.get("num_local_experts"));
    config.fields["moe_intermediate_size"] = c.or("moe_intermediate_size", 0);
    config.fields["num_experts_per_tok"] = c.or("num_experts_per_tok", 0);
    config.fields["num_experts"] = experts.cloned().unwrap_or_else(|| json!(0));
    config.fields["decoder_sparse_step"] = c.or("decoder_sparse_step", 0);
    config.fields["norm_topk_prob"] = c.or("norm_topk_prob", false);
    Ok(config)
}

fn gemma(c: &Settings) -> Result<ModelConfig, ChatConfigError> {
    gemma_with(c, c.context, c.context.min(8192))
}

fn gemma_with(c: &Settings, context: u64, prefill: u64) -> Result<ModelConfig, ChatConfigError> {
    let vocab = c.required_count("vocab_size")?;
    let activation = c.get("hidden_activation").or_else(|| c.get("hidden_act"));
    let fields = json!({
        "hidden_size": c.required("hidden_size")?,
        "intermediate_size": c.required("intermediate_size")?,
        "attention_bias": c.or("attention_bias", false),
        "num_attention_heads": c.required("num_attention_heads")?,
        "num_key_value_heads": key_value_heads(c)?,
        "head_dim": c.or("head_dim", 256),
        "num_hidden_layers": c.required("num_hidden_layers")?,
        "rms_norm_eps": c.or("rms_norm_eps", 1e-6),
        "vocab_size": vocab,
        "hidden_activation": activation.cloned().unwrap_or_else(|| "gelu_pytorch_tanh".into()),
        "position_embedding_base": c.rope().theta_or(10_000),
        "context_window_size": context,
        "prefill_chunk_size": prefill,
        "tensor_parallel_shards": 1,
        "max_batch_size": MAX_BATCH_SIZE,
    });
    Ok(ModelConfig::full(fields, vocab, context, prefill))
}

fn gemma2(c: &Settings) -> Result<ModelConfig, ChatConfigError> {
    // MLC runs every layer with full attention and so stops where the sliding layers would begin to differ.
    let window = c.count("sliding_window")?.unwrap_or(4096);
    let mut config = gemma_with(c, window, window.min(8192))?;
    if let Value::Object(fields) = &mut config.fields {
        fields.insert("attn_logit_softcapping".into(), c.or("attn_logit_softcapping", 50.0));
        fields.insert("final_logit_softcapping".into(), c.or("final_logit_softcapping", 30.0));
        fields.insert("query_pre_attn_scalar".into(), c.or("query_pre_attn_scalar", 256));
        fields.insert("sliding_window".into(), window.into());
    }
    Ok(config)
}

/// The class keeps what it does not know in `kwargs`, minus what it has used up.
fn gemma3(c: &Settings) -> Result<ModelConfig, ChatConfigError> {
    const CONTEXT: u64 = 8192;
    const PREFILL: u64 = 8192;
    let rope = c.rope();
    let window = c.count("sliding_window")?.unwrap_or(4096);
    let vocab = c.count("vocab_size")?.unwrap_or(262_208);
    let context = window.max(CONTEXT);
    let scaling = match c.map.get("rope_scaling") {
        Some(Value::Null) => Value::Null,
        _ => rope.scaling.as_ref().map_or(json!(0), |rule| json!(rule)),
    };
    let mut text = json!({
        "hidden_size": c.required("hidden_size")?,
        "intermediate_size": c.required("intermediate_size")?,
        "num_hidden_layers": c.required("num_hidden_layers")?,
        "attention_bias": c.or("attention_bias", false),
        "num_attention_heads": c.or("num_attention_heads", 8),
        "num_key_value_heads": c.or("num_key_value_heads", 4),
        "head_dim": c.or("head_dim", 256),
        "rms_norm_eps": c.or("rms_norm_eps", 1e-6),
        "hidden_activation": c.or("hidden_activation", "gelu_pytorch_tanh"),
        "position_embedding_base": rope.theta_or(1_000_000),
        "rope_scaling": scaling,
        "context_window_size": context,
        "prefill_chunk_size": PREFILL,
        "query_pre_attn_scalar": c.or("query_pre_attn_scalar", 256),
        "sliding_window_size": window,
    });
    let used = |key: &str| {
        text.get(key).is_some()
            || matches!(key, "rope_theta" | "rope_parameters")
            || (key == "vocab_size" && !c.nested)
    };
    let rest = c.map.iter().filter(|(key, _)| !used(key));
    let mut kwargs: Map<_, _> = rest.map(|(key, value)| (key.clone(), value.clone())).collect();
    // What transformers 4 called rope_local_base_freq and MLC therefore keeps under that name.
    if let Some(theta) =
        c.map.get("rope_parameters").and_then(|all| all.pointer("/sliding_attention/rope_theta"))
    {
        kwargs.entry("rope_local_base_freq").or_insert_with(|| theta.clone());
    }
    text["kwargs"] = Value::Object(kwargs);
    let fields = json!({
        "text_config": text,
        "vocab_size": vocab,
        "tensor_parallel_shards": 1,
        "max_batch_size": MAX_BATCH_SIZE,
        "context_window_size": context,
        "sliding_window_size": window,
        "prefill_chunk_size": PREFILL,
        "is_text_model": !c.nested,
    });
    // MLC repeats the window at the top level too, and WebLLM then refuses the file: it wants one of the two sizes.
    Ok(ModelConfig::full(fields, vocab, context, PREFILL))
}

fn phi3(c: &Settings) -> Result<ModelConfig, ChatConfigError> {
    let (vocab, context, rope) = (c.required_count("vocab_size")?, c.context, c.rope());
    let prefill = context.min(8192);
    let original = c.rotary_or("original_max_position_embeddings", 0);
    let scaling = rope.scaling.as_ref().map(|rule| longrope(rule, context, &original));
    let fields = json!({
        "model_type": c.model_type,
        "hidden_size": c.required("hidden_size")?,
        "vocab_size": vocab,
        "num_hidden_layers": c.required("num_hidden_layers")?,
        "num_attention_heads": c.required("num_attention_heads")?,
        "intermediate_size": c.required("intermediate_size")?,
        "rms_norm_eps": c.or("rms_norm_eps", 1e-5),
        "num_key_value_heads": key_value_heads(c)?,
        "max_position_embeddings": context,
        "position_embedding_base": rope.theta_or(10_000),
        "rope_scaling": scaling,
        "original_max_position_embeddings": original,
        "context_window_size": context,
        "prefill_chunk_size": prefill,
        "head_dim": head_dim(c)?,
        "tensor_parallel_shards": 1,
        "max_batch_size": MAX_BATCH_SIZE,
        "tie_word_embeddings": c.or("tie_word_embeddings", false),
        "partial_rotary_factor": c.rotary_or("partial_rotary_factor", 1.0),
    });
    Ok(ModelConfig::full(fields, vocab, context, prefill))
}

/// Phi-3's rule with the keys that MLC adds to it, whatever it is called: "su" is its older name. Another rule is kept.
fn longrope(rule: &Map<String, Value>, context: u64, original: &Value) -> Value {
    let (Some(long), Some(short)) = (rule.get("long_factor"), rule.get("short_factor")) else {
        return Value::Object(rule.clone());
    };
    json!({
        "long_factor": long,
        "short_factor": short,
        "type": "longrope",
        "rope_type": "longrope",
        "max_position_embeddings": context,
        "original_max_position_embeddings": original,
    })
}

fn unknown(c: &Settings) -> Result<ModelConfig, ChatConfigError> {
    let (vocab, context) = (c.required_count("vocab_size")?, c.context);
    Ok(ModelConfig::full(Value::Object(c.map.clone()), vocab, context, context.min(8192)))
}

fn key_value_heads(c: &Settings) -> Result<Value, ChatConfigError> {
    c.get("num_key_value_heads")
        .map_or_else(|| c.required("num_attention_heads"), |v| Ok(v.clone()))
}

fn head_dim(c: &Settings) -> Result<Value, ChatConfigError> {
    if let Some(head_dim) = c.get("head_dim") {
        return Ok(head_dim.clone());
    }
    let (hidden, heads) =
        (c.required_count("hidden_size")?, c.required_count("num_attention_heads")?);
    let zero = || ChatConfigError::NotACount { key: "num_attention_heads", value: "0".into() };
    hidden.checked_div(heads).map(Value::from).ok_or_else(zero)
}

/// Absent sizes are written as -1.
pub(super) fn size(value: Option<u64>) -> Value {
    value.map_or(json!(-1), Value::from)
}
