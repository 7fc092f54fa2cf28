//! Keys that do not change what the model computes, and why each may be left unread.

use serde_json::{Map, Value};

/// Whatever their value is.
const ALWAYS: &[(&str, &[&str])] = &[
    (
        "where and by what the file was written",
        &[
            "_commit_hash",
            "_name_or_path",
            "is_llama_config",
            "transformers_version",
            "trl_version",
            "unsloth_fixed",
            "unsloth_version",
        ],
    ),
    ("checked against each other by the table of architectures", &["architectures", "model_type"]),
    (
        "which code transformers would run; model_type says what it computes",
        &[
            "_attn_implementation",
            "_attn_implementation_autoset",
            "_attn_implementation_internal",
            "_experts_implementation",
            "_flash_attn_2_enabled",
            "attn_implementation",
            "auto_map",
            "cache_implementation",
            "chunk_size_feed_forward",
            "is_decoder",
            "tokenizer_class",
            "torchscript",
            "use_bfloat16",
            "use_cache",
            "xla_device",
        ],
    ),
    (
        "what transformers hands back beside the logits",
        &[
            "output_attentions",
            "output_hidden_states",
            "output_past",
            "output_scores",
            "return_dict",
            "return_dict_in_generate",
        ],
    ),
    ("tensors carry their own dtypes", &["dtype", "torch_dtype"]),
    (
        "training only",
        &[
            "attention_dropout",
            "attn_pdrop",
            "embd_pdrop",
            "gradient_checkpointing",
            "hidden_dropout",
            "initializer_range",
            "neftune_noise_alpha",
            "resid_pdrop",
            "tf_legacy_loss",
        ],
    ),
    ("how the training was split; the result is the same to rounding", &["pretraining_tp"]),
    (
        "heads of other tasks, which a decoder of text has not",
        &[
            "classifier_dropout",
            "finetuning_task",
            "id2label",
            "label2id",
            "num_labels",
            "problem_type",
            "task_specific_params",
        ],
    ),
    (
        "how tokens are chosen, after the model",
        &[
            "bad_words_ids",
            "begin_suppress_tokens",
            "diversity_penalty",
            "do_sample",
            "early_stopping",
            "encoder_no_repeat_ngram_size",
            "exponential_decay_length_penalty",
            "forced_bos_token_id",
            "forced_eos_token_id",
            "length_penalty",
            "max_length",
            "max_new_tokens",
            "min_length",
            "no_repeat_ngram_size",
            "num_beam_groups",
            "num_beams",
            "num_return_sequences",
            "prefix",
            "remove_invalid_values",
            "renormalize_logits",
            "repetition_penalty",
            "suppress_tokens",
            "temperature",
            "top_k",
            "top_p",
            "typical_p",
        ],
    ),
    (
        "tokens, which are read with the generation settings or not at all",
        &["bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id", "sep_token_id"],
    ),
    (
        "images and sound, whose towers are left out",
        &[
            "audio_config",
            "audio_token_id",
            "boa_token_id",
            "boi_token_id",
            "boi_token_index",
            "eoa_token_id",
            "eoa_token_index",
            "eoi_token_id",
            "eoi_token_index",
            "image_token_id",
            "image_token_index",
            "mm_tokens_per_image",
            "video_token_id",
            "vision_config",
            "vision_soft_tokens_per_image",
        ],
    ),
    ("settings of another runtime", &["transformers.js_config"]),
];

/// Where they are off, `false` or empty: on, they would make another model of it.
const OFF: &[&str] = &[
    "add_cross_attention",
    "is_encoder_decoder",
    "pruned_heads",
    "tie_encoder_decoder",
    "use_mrope",
];

/// Whether a key of a config may be left unread.
pub(super) fn is_harmless(key: &str, value: &Value) -> bool {
    let is_off = *value == Value::Bool(false) || value.as_object().is_some_and(Map::is_empty);
    ALWAYS.iter().any(|(_why, keys)| keys.contains(&key)) || is_off && OFF.contains(&key)
}
