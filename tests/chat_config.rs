//! `mlc-chat-config.json` byte for byte: `tests/golden` holds sources and what MLC-LLM wrote from them.

use std::path::{Path, PathBuf};

use packlight_formats::chat_config::{
    ChatConfig, Conversation, Inputs, PRESETS, TokenizerInfo, by_name, to_json,
};
use serde::Deserialize as _;
use serde_json::{Value, json};

const ARCHITECTURES: [&str; 7] =
    ["llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3"];

fn golden(architecture: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(architecture)
}

fn text(architecture: &str, file: &str) -> String {
    fs_err::read_to_string(golden(architecture).join(file)).unwrap()
}

fn json_of(architecture: &str, file: &str) -> Value {
    serde_json::from_str(&text(architecture, file)).unwrap()
}

/// The file made from `config` and the golden's other inputs.
fn made(architecture: &str, config: &Value) -> String {
    let expected = json_of(architecture, "mlc-chat-config.json");
    let generation_config = json_of(architecture, "generation_config.json");
    let tokenizer_info = TokenizerInfo::detect(&json_of(architecture, "tokenizer.json")).unwrap();
    let conv_template = Conversation::deserialize(&expected["conv_template"]).unwrap();
    let text = if config["text_config"].is_object() { &config["text_config"] } else { config };
    let context = text["max_position_embeddings"].as_u64().unwrap().try_into().unwrap();
    to_json(&Inputs {
        config,
        context,
        generation_config: Some(&generation_config),
        scheme: "q4f16_1",
        tokenizer_files: &["tokenizer_config.json", "tokenizer.json", "model.safetensors"],
        tokenizer_info: &tokenizer_info,
        conv_template: &conv_template,
        // The tool that wrote the goldens could not read their stub of a tokenizer.
        active_vocab_size: None,
    })
    .unwrap()
}

#[test]
fn the_goldens_are_reproduced() {
    for architecture in ARCHITECTURES {
        let mut expected = text(architecture, "mlc-chat-config.json");
        if architecture == "gemma3_text" {
            // At the top level only: WebLLM refuses two sizes.
            expected = expected
                .replace("\n  \"sliding_window_size\": 512,", "\n  \"sliding_window_size\": -1,");
        }
        assert_eq!(made(architecture, &json_of(architecture, "config.json")), expected);
    }
}

#[test]
fn exactly_one_window_is_set() {
    for architecture in ARCHITECTURES {
        for window in [Value::Null, json!(256)] {
            let mut config = json_of(architecture, "config.json");
            config["sliding_window"] = window;
            let made: Value = serde_json::from_str(&made(architecture, &config)).unwrap();
            let unset = |key: &str| made[key] == -1;
            assert!(
                unset("context_window_size") != unset("sliding_window_size"),
                "{architecture}: {made:#}"
            );
        }
    }
}

#[test]
fn both_spellings_of_rope_give_the_same_file() {
    let rule = json!({
        "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3",
    });
    for architecture in ARCHITECTURES {
        for scaled in [false, true] {
            let mut old = json_of(architecture, "config.json");
            let mut new = old.clone();
            let settings = new.as_object_mut().unwrap();
            let theta = settings.shift_remove("rope_theta").unwrap();
            let mut parameters = json!({"rope_type": "default"});
            if scaled {
                parameters = rule.clone();
                old["rope_scaling"] = rule.clone();
            }
            parameters["rope_theta"] = theta;
            settings.insert("rope_parameters".to_owned(), parameters);
            assert_eq!(made(architecture, &old), made(architecture, &new));
            assert_eq!(
                made(architecture, &new).contains("llama3"),
                scaled && ["llama", "gemma3_text", "phi3"].contains(&architecture),
                "{architecture}"
            );
        }
    }
}

#[test]
fn longrope_has_the_keys_that_mlc_adds_under_all_its_names() {
    let mut old = json_of("phi3", "config.json");
    let mut new = old.clone();
    old["rope_scaling"] = json!({"long_factor": [2.0], "short_factor": [1.0], "type": "su"});
    new["rope_parameters"] = json!({
        "long_factor": [2.0], "rope_theta": 10000.0, "rope_type": "longrope", "short_factor": [1.0],
    });
    assert_eq!(made("phi3", &old), made("phi3", &new));
    let made: Value = serde_json::from_str(&made("phi3", &new)).unwrap();
    let expected = json!({
        "long_factor": [2.0], "short_factor": [1.0], "type": "longrope", "rope_type": "longrope",
        "max_position_embeddings": 4096, "original_max_position_embeddings": 4096,
    });
    assert_eq!(made["model_config"]["rope_scaling"], expected);
}

#[test]
fn an_architecture_without_a_class_keeps_its_settings() {
    let text_config =
        json!({"vocab_size": 512, "max_position_embeddings": 4096, "odd": [1.0, null]});
    let config = json!({"model_type": "gemma9", "text_config": text_config, "vision_config": {}});
    let made: Value = serde_json::from_str(&made("llama", &config)).unwrap();
    assert_eq!(made["model_config"], text_config);
    assert_eq!(made["model_type"], "gemma9");
    assert_eq!(made["context_window_size"], 4096);
    assert_eq!(made["prefill_chunk_size"], 4096);
}

#[test]
fn a_missing_setting_is_named() {
    let mut config = json_of("llama", "config.json");
    config["hidden_size"] = Value::Null;
    let expected = json_of("llama", "mlc-chat-config.json");
    let error = to_json(&Inputs {
        config: &config,
        context: 512,
        generation_config: None,
        scheme: "q4f16_1",
        tokenizer_files: &[],
        tokenizer_info: &TokenizerInfo::detect(&Value::Null).unwrap(),
        conv_template: &Conversation::deserialize(&expected["conv_template"]).unwrap(),
        active_vocab_size: None,
    })
    .unwrap_err();
    assert_eq!(error.to_string(), "config.json has no `hidden_size`, which llama needs");
}

#[test]
fn presets_are_those_of_the_goldens() {
    for architecture in ARCHITECTURES {
        let expected = &json_of(architecture, "mlc-chat-config.json")["conv_template"];
        let preset = by_name(expected["name"].as_str().unwrap()).unwrap();
        assert_eq!(serde_json::to_value(preset.conversation()).unwrap(), *expected);
    }
    assert!(PRESETS.len() > ARCHITECTURES.len());
}

#[test]
fn a_golden_reads_back() {
    let config: ChatConfig = serde_json::from_str(&text("llama", "mlc-chat-config.json")).unwrap();
    assert_eq!((config.model_type.as_str(), config.vocab_size), ("llama", 512));
    assert_eq!(config.conversation().unwrap().name.as_deref(), Some("llama-3"));
    assert_eq!(config.stop_token_ids(), [128_001, 128_009]);
}
