//! The model of a plain MLC bundle: `model_config` put back into the words of `config.json`, which the architecture's own
//! reader then describes. MLC's classes (`python/mlc_llm/model/<name>/<name>_model.py`) rename some settings, add their
//! own, and drop others; the tables below say which.

use serde_json::{Map, Value};

use super::ChatConfig;
use crate::arch;
use crate::config::ConfigError;
use crate::model::Model;

/// MLC's names of settings that `config.json` calls something else.
const RENAMED: [(&str, &str); 3] = [
    ("context_window_size", "max_position_embeddings"),
    ("position_embedding_base", "rope_theta"),
    ("sliding_window_size", "sliding_window"),
];

/// Settings of MLC's runtime, which do not change what the model computes, and why.
const OF_THE_RUNTIME: [(&str, &str); 10] = [
    ("attention_sink_size", "first tokens that MLC's own sliding window keeps"),
    ("disaggregation", "how servers share the work"),
    ("is_text_model", "which names the checkpoint had"),
    ("max_batch_size", "how many texts a server answers at once"),
    ("pipeline_parallel_stages", "how devices share the work"),
    ("prefill_chunk_size", "how many tokens are read at once"),
    ("tensor_parallel_shards", "how devices share the work"),
    ("vocab_size", "at the top of the file too"),
    ("weight_block_size", "how the checkpoint was quantised"),
    ("kwargs", "what MLC's class did not know; read for Gemma 3"),
];

/// Settings that MLC's classes drop, and what is taken in their place: their own libraries compute as if it were so.
const UNSTATED: [(&str, &str, &str); 12] = [
    ("gemma2", "max_position_embeddings", "the context of every Gemma 2 is taken"),
    ("gemma2", "layer_types", "every other layer is taken to have a window"),
    (
        "llama",
        "rope_scaling",
        "positions are taken not to be scaled; those of Llama 3.1 and later are",
    ),
    ("mistral", "max_position_embeddings", "the context of Mistral 7B is taken"),
    ("phi3", "sliding_window", "layers are taken to see everything"),
    ("qwen2", "rope_scaling", "positions are taken not to be scaled"),
    ("qwen2", "use_sliding_window", "layers are taken to see everything"),
    ("qwen3", "rope_scaling", "positions are taken not to be scaled"),
    ("qwen3", "use_sliding_window", "layers are taken to see everything"),
    ("qwen3_moe", "mlp_only_layers", "every layer is taken to have experts"),
    ("qwen3_moe", "rope_scaling", "positions are taken not to be scaled"),
    ("qwen3_moe", "use_sliding_window", "layers are taken to see everything"),
];

/// A biased projection of the first layer, and the setting that says so. MLC's Llama has no biases, packlight's bundles
/// carry them all the same.
const LLAMA_BIASES: [(&str, &str); 2] = [
    ("model.layers.0.self_attn.qkv_proj.bias", "attention_bias"),
    ("model.layers.0.mlp.gate_up_proj.bias", "mlp_bias"),
];
const HEADS: [&str; 2] = ["lm_head.weight", "lm_head.q_weight"];

impl ChatConfig {
    /// The description of the bundle's model, and what had to be assumed for it. `holds` says whether the bundle has a
    /// record of that name.
    ///
    /// # Errors
    /// As [`arch::describe`].
    pub fn describe(
        &self,
        holds: impl Fn(&str) -> bool,
    ) -> Result<(Model, Vec<String>), ConfigError> {
        let mut config = self.config()?;
        let mut derive = |key: &str, value: bool| {
            config.entry(key).or_insert(Value::Bool(value));
        };
        derive("tie_word_embeddings", !HEADS.iter().any(|head| holds(head)));
        if self.model_type == "llama" {
            for (record, key) in LLAMA_BIASES {
                derive(key, holds(record));
            }
        }
        let model = arch::describe(&Value::Object(config.clone()), |_| false)?;
        let unstated = UNSTATED.iter().filter(|(model_type, key, _)| {
            *model_type == self.model_type && !config.contains_key(*key)
        });
        let notes = unstated.map(|(_, key, instead)| {
            format!("mlc-chat-config.json does not say `{key}`: {instead}")
        });
        Ok((model, notes.collect()))
    }

    /// The settings as `config.json` had them.
    fn config(&self) -> Result<Map<String, Value>, ConfigError> {
        let fields = self.model_config.as_object().ok_or(ConfigError::NotAnObject)?;
        let mut config = fields.clone();
        // Gemma 3: its settings one level down, and what its class did not know another.
        if let Some(Value::Object(text)) = config.remove("text_config") {
            let rest = text.get("kwargs").and_then(Value::as_object).cloned().unwrap_or_default();
            config = text;
            for (key, value) in rest {
                config.entry(key).or_insert(value);
            }
        }
        if self.model_type == "gemma2"
            && config.get("context_window_size") == config.get("sliding_window")
        {
            // MLC has no windows for Gemma 2, and so ends its context where the first would.
            config.remove("context_window_size");
        }
        for (mlc, name) in RENAMED {
            match config.remove(mlc) {
                // -1 stands for none: of a window that is a statement, of the context it is not.
                Some(size) if size == -1 && name == "sliding_window" => {
                    config.entry(name).or_insert(Value::Null);
                }
                Some(size) if size == -1 => {}
                Some(value) => {
                    config.entry(name).or_insert(value);
                }
                None => {}
            }
        }
        for (key, _why) in OF_THE_RUNTIME {
            config.remove(key);
        }
        self.restore_rope(&mut config);
        config.insert("vocab_size".into(), self.vocab_size.into());
        config.insert("model_type".into(), self.model_type.clone().into());
        Ok(config)
    }

    fn restore_rope(&self, config: &mut Map<String, Value>) {
        if config.contains_key("rope_parameters") {
            // What MLC made of them, which can only be less.
            config.remove("rope_theta");
            config.remove("rope_scaling");
        }
        match config.get_mut("rope_scaling") {
            // Gemma 3's class writes 0 for none.
            Some(scaling) if *scaling == 0 => *scaling = Value::Null,
            // Phi-3's class adds this to the rule.
            Some(Value::Object(rule)) if self.model_type == "phi3" => {
                rule.remove("max_position_embeddings");
            }
            _ => {}
        }
        if self.model_type == "phi3"
            && config.get("original_max_position_embeddings").is_some_and(|n| *n == 0)
        {
            config.remove("original_max_position_embeddings");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::Head;

    fn chat_config(model_type: &str, model_config: &Value) -> ChatConfig {
        let config = json!({
            "model_type": model_type, "quantization": "q4f16_1", "vocab_size": 320, "model_config": model_config,
        });
        serde_json::from_value(config).unwrap()
    }

    /// Sizes under which every architecture is a sound model.
    fn with_sizes(mut model_config: Value) -> Value {
        let sizes = json!({
            "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2,
            "num_key_value_heads": 2, "head_dim": 32, "context_window_size": 512, "prefill_chunk_size": 512,
        });
        for (key, value) in sizes.as_object().unwrap() {
            model_config.as_object_mut().unwrap().entry(key).or_insert(value.clone());
        }
        model_config
    }

    #[test]
    fn what_is_not_said_is_not_passed_over() {
        let fields = with_sizes(json!({ "position_embedding_base": 500_000.0 }));
        let (model, notes) = chat_config("llama", &fields).describe(|_| false).unwrap();
        assert_eq!((model.context, model.ropes[0].theta), (512, 500_000.0));
        assert_eq!(
            notes,
            [
                "mlc-chat-config.json does not say `rope_scaling`: positions are taken not to be scaled; those of Llama \
              3.1 and later are"
            ]
        );
        assert_eq!(model.head, Head::Tied);
        // Bundles of 2023 and 2024 have no `tie_word_embeddings`: their records tell.
        let fields = with_sizes(json!({ "rope_scaling": null }));
        let (model, _) = chat_config("llama", &fields).describe(|name| name == HEADS[1]).unwrap();
        assert_ne!(model.head, Head::Tied);
        assert_eq!(chat_config("llama", &fields).describe(|_| false).unwrap().1, [""; 0]);
    }

    #[test]
    fn an_unknown_setting_is_an_error() {
        let fields = with_sizes(json!({ "logit_wobble": 2 }));
        let error = chat_config("llama", &fields).describe(|_| false).unwrap_err();
        assert_eq!(error.to_string(), "config keys that `llama` does not know: logit_wobble");
    }

    #[test]
    fn a_window_may_take_the_place_of_the_context() {
        let windows = |context: i32, window: i32| {
            let fields = json!({ "context_window_size": context, "sliding_window_size": window });
            let (model, notes) =
                chat_config("mistral", &with_sizes(fields)).describe(|_| true).unwrap();
            (model.context, model.layers[0].mixer.attention().unwrap().window, notes.len())
        };
        assert_eq!(windows(-1, 16), (131_072, Some(16), 1));
        assert_eq!(windows(512, -1), (512, None, 0));
    }

    #[test]
    fn gemma_2_has_more_context_than_mlc_gives_it() {
        let fields = with_sizes(json!({ "context_window_size": 16, "sliding_window": 16 }));
        let (model, notes) = chat_config("gemma2", &fields).describe(|_| false).unwrap();
        assert_eq!(
            (model.context, model.layers[0].mixer.attention().unwrap().window),
            (8192, Some(16))
        );
        assert_eq!(notes.len(), 2);
    }
}
