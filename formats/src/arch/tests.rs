//! Spellings, defaults and refusals. What the descriptions compute is held to transformers by the fixtures.

use serde_json::{Value, json};

use super::*;
use crate::model::{Attention, Projections, Recipe};
use crate::rope::{Rope, Scaling};

fn with(mut config: Value, more: &Value) -> Value {
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

fn described(config: &Value) -> Model {
    describe(config, |_| true).unwrap()
}

fn attention(model: &Model, layer: usize) -> &Attention {
    model.layers[layer].mixer.attention().unwrap()
}

fn refused(config: &Value) -> String {
    describe(config, |_| true).unwrap_err().to_string()
}

fn gemma4() -> Value {
    json!({
        "model_type": "gemma4_text",
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        "num_kv_shared_layers": 2,
    })
}

#[test]
fn a_config_without_keys_has_the_defaults_of_its_class() {
    for arch in ARCHITECTURES {
        let model = described(&json!({ "model_type": arch.model_type }));
        assert_eq!(model.architecture, arch.model_type);
    }
    let model = described(&json!({ "model_type": "gemma3_text" }));
    let full = |i: usize| attention(&model, i).window.is_none();
    assert!((0..26).all(|i| full(i) == ((i + 1) % 6 == 0)));
    assert_eq!(model.ropes, [Rope::plain(256, 1_000_000.0), Rope::plain(256, 10_000.0)]);
}

#[test]
fn both_spellings_of_rotary_settings_mean_the_same() {
    let scaling = json!({ "rope_type": "linear", "factor": 8.0 });
    let old = json!({
        "model_type": "gemma3_text",
        "rope_theta": 5e5,
        "rope_local_base_freq": 2e4,
        "rope_scaling": scaling,
        "sliding_window_pattern": 2,
    });
    let new = json!({
        "model_type": "gemma3_text",
        "_sliding_window_pattern": 2,
        "rope_parameters": {
            "full_attention": { "rope_theta": 5e5, "rope_type": "linear", "factor": 8.0 },
            "sliding_attention": { "rope_theta": 2e4, "rope_type": "default" },
        },
    });
    assert_eq!(described(&old), described(&new));

    let llama = json!({ "model_type": "llama" });
    let old = with(
        llama.clone(),
        &json!({ "rope_theta": 5e5, "rope_scaling": { "type": "linear", "factor": 2.0 } }),
    );
    let new =
        json!({ "rope_parameters": { "rope_theta": 5e5, "rope_type": "linear", "factor": 2.0 } });
    assert_eq!(described(&old), described(&with(llama, &new)));
}

/// transformers takes a mix of the spellings: `convert_rope_params_to_dict` in modeling_rope_utils.py.
#[test]
fn a_mix_of_the_spellings_is_no_fault_unless_it_contradicts_itself() {
    let rule = json!({ "rope_type": "linear", "factor": 2.0 });
    let inner = with(rule.clone(), &json!({ "rope_theta": 5e5 }));
    let short =
        json!({ "short_factor": vec![1.0; 48], "long_factor": vec![2.0; 48], "type": "longrope" });
    let usual = json!({ "rope_theta": 5e5, "rope_scaling": rule });
    let llama = json!({ "model_type": "llama" });
    let expected = described(&with(llama.clone(), &usual));
    for mix in [
        json!({ "rope_scaling": inner }),
        json!({ "rope_parameters": rule, "rope_theta": 500_000 }),
        json!({ "rope_parameters": inner, "rope_theta": 5e5, "rope_scaling": rule }),
        json!({ "rope_parameters": inner, "partial_rotary_factor": 1.0 }),
    ] {
        assert_eq!(described(&with(llama.clone(), &mix)), expected, "{mix}");
    }
    let gemma3 = json!({ "model_type": "gemma3_text" });
    let phi3 = json!({ "model_type": "phi3", "rope_scaling": short });
    for (config, mix, keys) in [
        (
            &llama,
            json!({ "rope_scaling": inner, "rope_theta": 1e4 }),
            "`rope_theta` and `rope_scaling.rope_theta`",
        ),
        (
            &llama,
            json!({ "rope_parameters": inner, "rope_scaling": { "type": "default" } }),
            "`rope_scaling` and",
        ),
        (
            &llama,
            json!({ "rope_parameters": rule, "rope_theta": 1e4, "rope_scaling": inner }),
            "`rope_theta` and",
        ),
        (&phi3, json!({ "rope_parameters": { "rope_type": "default" } }), "`rope_scaling` and"),
        (
            &gemma3,
            json!({ "rope_parameters": { "full_attention": rule }, "rope_scaling": { "type": "linear", "factor": 8 } }),
            "`rope_scaling` and `rope_parameters`",
        ),
        (
            &gemma3,
            json!({ "rope_parameters": { "sliding_attention": inner }, "rope_local_base_freq": 1e4 }),
            "`rope_local_base_freq` and",
        ),
    ] {
        let error = refused(&with(config.clone(), &mix));
        assert!(error.contains(keys) && error.contains("contradict"), "{mix}: {error}");
    }
    let part = json!({ "rope_parameters": with(inner, &json!({ "partial_rotary_factor": 0.5 })) });
    assert!(refused(&with(llama, &part)).contains("partial_rotary_factor"));
}

/// transformers writes the settings of both kinds of layers, whichever there are.
#[test]
fn settings_of_layers_that_are_not_there_are_no_matter() {
    let sections = json!({ "rope_parameters": {
        "full_attention": { "rope_theta": 5e5, "rope_type": "default" },
        "sliding_attention": { "rope_theta": 2e4, "rope_type": "default" },
    } });
    for model_type in ["gemma3_text", "gemma4_text"] {
        for kind in ["full_attention", "sliding_attention"] {
            let one =
                json!({ "model_type": model_type, "num_hidden_layers": 1, "layer_types": [kind] });
            let model = describe(&with(one, &sections), |_| true);
            assert!(model.is_ok(), "{model_type} {kind}: {model:?}");
        }
    }
}

#[test]
fn both_spellings_of_layer_shapes_mean_the_same() {
    let old =
        json!({ "attention_k_eq_v": true, "global_head_dim": 64, "num_global_key_value_heads": 1 });
    let full = json!({ "head_dim": 64, "num_key_value_heads": 1 });
    let new = json!({ "attention_k_eq_v": true, "per_layer_config": { "1": full, "3": full } });
    let model = described(&with(gemma4(), &old));
    assert_eq!(model, described(&with(gemma4(), &new)));
    let full = attention(&model, 1);
    assert_eq!((full.head_dim, full.kv_heads), (64, 1));
    assert!(matches!(full.projections, Projections::KeyIsValue { .. }));
    // Without `attention_k_eq_v` transformers ignores the number of heads.
    let old = with(gemma4(), &with(old, &json!({ "attention_k_eq_v": false })));
    assert_eq!(attention(&described(&old), 1).kv_heads, 4);

    let unknown = json!({ "per_layer_config": { "1": { "sliding_window": 3 } } });
    assert!(refused(&with(gemma4(), &unknown)).contains("per_layer_config.1.sliding_window"));
    let beyond = json!({ "per_layer_config": { "4": { "head_dim": 64 } } });
    assert!(refused(&with(gemma4(), &beyond)).contains("per_layer_config.4"));
}

#[test]
fn layers_share_with_the_last_of_their_kind() {
    let model = described(&gemma4());
    let owners = (0..model.layers.len()).map(|i| match attention(&model, i).projections {
        Projections::Shared { with, .. } => Some(with),
        _ => None,
    });
    assert!(owners.eq([None, None, Some(0), Some(1)]));
    let none_full = json!({ "num_kv_shared_layers": 3 });
    assert!(refused(&with(gemma4(), &none_full)).contains("layer 1"));
}

#[test]
fn the_decoder_is_found_wherever_it_is() {
    let text = json!({ "model_type": "gemma3_text", "num_hidden_layers": 1 });
    let config = json!({ "model_type": "gemma3", "text_config": text, "vision_config": {} });
    for root in ROOTS {
        let embed = format!("{root}embed_tokens.weight");
        let model = describe(&config, |tensor| tensor == embed).unwrap();
        assert_eq!(model.embed.recipe.sources()[0].tensor, embed);
        assert_eq!(model.embed.name, "language_model.model.embed_tokens.weight");
        assert_eq!(model.norm.weight.recipe.sources()[0].tensor, format!("{root}norm.weight"));
        assert!(matches!(model.norm.weight.recipe, Recipe::AddOne(_)));
    }
}

#[test]
fn unread_keys_are_named_by_their_path() {
    let text = json!({ "model_type": "gemma3_text", "surprise": 1 });
    let config = json!({ "model_type": "gemma3", "text_config": text });
    assert!(refused(&config).contains("text_config.surprise"));
    let rope = json!({ "model_type": "llama", "rope_parameters": { "rope_type": "linear", "factor": 2.0, "surprise": 1 } });
    assert!(refused(&rope).contains("rope_parameters.surprise"));
    assert!(
        refused(&with(gemma4(), &json!({ "enable_moe_block": true }))).contains("enable_moe_block")
    );
    assert!(
        refused(&with(gemma4(), &json!({ "use_bidirectional_attention": "all" }))).contains("all")
    );
    let bidirectional = json!({ "model_type": "gemma2", "use_bidirectional_attention": true });
    assert!(refused(&bidirectional).contains("use_bidirectional_attention"));
}

/// What transformers' base class and other programs write into every config.
#[test]
fn keys_that_change_nothing_are_no_fault() {
    let llama = json!({ "model_type": "llama" });
    let harmless = json!({
        "_attn_implementation_autoset": true, "add_cross_attention": false, "bad_words_ids": [[1]], "is_decoder": true,
        "chunk_size_feed_forward": 0, "id2label": { "0": "LABEL_0" }, "is_encoder_decoder": false, "label2id": {},
        "max_length": 20, "output_attentions": false, "pruned_heads": {}, "return_dict": true, "temperature": 1.0,
        "tie_encoder_decoder": false, "tokenizer_class": "LlamaTokenizer", "unsloth_fixed": true, "unsloth_version": "1",
    });
    assert_eq!(described(&with(llama.clone(), &harmless)), described(&llama));
    for (key, value) in [
        ("add_cross_attention", json!(true)),
        ("is_encoder_decoder", json!(true)),
        ("use_mrope", json!(true)),
        ("pruned_heads", json!({ "0": [1] })),
        // The list is of keys of a model, not of its parts.
        ("rope_scaling", json!({ "type": "default", "temperature": 2.0 })),
    ] {
        let error = refused(&with(llama.clone(), &json!({ key: value })));
        assert!(error.contains(key), "{error}");
    }
}

#[test]
fn only_keys_that_nothing_knows_can_be_ignored() {
    let config = json!({
        "model_type": "llama", "wobble": 1,
        "rope_scaling": { "rope_type": "linear", "factor": 2.0, "wobble": 1 },
    });
    let ignoring = |keys: &[&str]| {
        let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
        describe_ignoring(&config, &keys, |_| true).map_err(|error| error.to_string())
    };
    assert!(ignoring(&["wobble", "rope_scaling.wobble"]).is_ok());
    assert!(ignoring(&["wobble"]).unwrap_err().contains("rope_scaling.wobble"));
    for key in ["rope_scaling", "vocab_size", "use_cache"] {
        let error = ignoring(&["wobble", "rope_scaling.wobble", key]).unwrap_err();
        assert!(error.contains(&format!("`{key}` cannot be ignored")), "{error}");
    }
}

#[test]
fn what_is_left_out_has_a_reason() {
    let model = described(&gemma4());
    for tensor in [
        "model.vision_tower.encoder.layers.0.self_attn.k_proj.linear.weight",
        "audio_tower.layers.0.norm.weight",
        "model.embed_vision.embedding_projection.weight",
        "multi_modal_projector.mm_soft_emb_norm.weight",
        "model.language_model.layers.0.mlp.down_proj.input_max",
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "lm_head.weight",
        "model.language_model.layers.2.self_attn.k_proj.weight",
        "model.layers.3.self_attn.v_norm.weight",
    ] {
        assert!(skip_reason(&model, tensor).is_some(), "{tensor}");
    }
    for tensor in [
        "model.layers.1.self_attn.k_proj.weight",
        "model.layers.2.self_attn.q_proj.weight",
        "model.layers.4.self_attn.k_proj.weight",
        "model.layers.2.mlp.k_proj.weight",
    ] {
        assert_eq!(skip_reason(&model, tensor), None, "{tensor}");
    }
}

/// The numbers are transformers' `_compute_longrope_parameters`, `_compute_proportional_rope_parameters`.
#[test]
fn frequencies_are_those_of_transformers() {
    let close = |found: &[f32], expected: &[f32]| {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() <= 2e-7 * expected.abs(), "{found} {expected}");
        }
    };
    let phi3 = json!({
        "model_type": "phi3",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "max_position_embeddings": 512,
        "original_max_position_embeddings": 64,
        "partial_rotary_factor": 0.5,
        "rope_scaling": {
            "type": "su",
            "short_factor": [1.0, 1.1, 1.2, 1.3],
            "long_factor": [1.5, 1.8, 2.1, 2.4],
        },
    });
    let rope = &described(&phi3).ropes[0];
    assert_eq!((rope.head_dim, rope.width), (16, 8));
    close(&rope.inv_freq(64), &[1.0, 0.090_909_09, 0.008_333_334, 0.000_769_230_8]);
    close(&rope.inv_freq(65), &[0.666_666_7, 0.055_555_556, 0.004_761_905, 0.000_416_666_7]);
    close(&[rope.attention_factor()], &[1.224_744_9]);
    let short = json!({ "type": "longrope", "short_factor": [1.0], "long_factor": [1.0] });
    assert!(refused(&with(phi3, &json!({ "rope_scaling": short }))).contains("1 short"));

    let rope = &described(&with(gemma4(), &json!({ "global_head_dim": 16 }))).ropes[1];
    assert_eq!(rope.scaling, Scaling::Proportional { pairs: 2, factor: 1.0 });
    close(&rope.inv_freq(1), &[1.0, 0.177_827_94, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
}

/// The numbers are transformers' `_compute_yarn_parameters`.
#[test]
fn yarn_is_that_of_transformers() {
    let close = |found: &[f32], expected: &[f32]| {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() <= 5e-7 * expected.abs(), "{found} {expected}");
        }
    };
    let rope = |theta: f64, head_dim: u32, section: &Value| {
        let config = json!({
            "model_type": "qwen3",
            "head_dim": head_dim,
            "max_position_embeddings": 131_072,
            "rope_theta": theta,
            "rope_scaling": with(json!({ "rope_type": "yarn" }), section),
        });
        described(&config).ropes[0].clone()
    };
    let usual = json!({ "factor": 4.0, "original_max_position_embeddings": 32768 });
    let usual = rope(1e6, 16, &usual);
    close(&[usual.attention_factor()], &[1.138_629_4]);
    close(
        &usual.inv_freq(1),
        &[
            1.0,
            0.177_827_94,
            0.031_622_78,
            0.004_217_56,
            0.000_5,
            4.445_698_5e-5,
            7.905_694e-6,
            1.405_853_4e-6,
        ],
    );
    let not_truncated = json!({
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": false,
        "original_max_position_embeddings": 4096,
    });
    let not_truncated = rope(150_000.0, 16, &not_truncated);
    close(&[not_truncated.attention_factor()], &[1.346_573_6]);
    close(
        &not_truncated.inv_freq(1),
        &[
            1.0,
            0.225_418,
            0.050_813_273,
            0.006_794_959_3,
            0.000_456_483_92,
            1.818_833_7e-5,
            4.099_978_5e-6,
            9.242_089_6e-7,
        ],
    );
    let scaled = json!({
        "factor": 40.0,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.5,
        "original_max_position_embeddings": 4096,
    });
    let scaled = rope(10_000.0, 16, &scaled);
    close(&[scaled.attention_factor()], &[1.155_722]);
    close(&scaled.inv_freq(1)[4..], &[0.006_75, 0.001_106_797_1, 2.5e-5, 7.905_694_5e-6]);
    let given = json!({
        "factor": 2.0,
        "attention_factor": 1.25,
        "original_max_position_embeddings": 64,
    });
    let given = rope(10_000.0, 8, &given);
    close(&[given.attention_factor()], &[1.25]);
    close(&given.inv_freq(1), &[1.0, 0.075, 0.005, 0.000_5]);
    let by_length =
        rope(10_000.0, 8, &json!({ "original_max_position_embeddings": 32768, "factor": null }));
    close(&by_length.inv_freq(1), &[1.0, 0.1, 0.01, 0.000_625]);
}

/// Row 9 of the behaviours: of heads of 512 the first 64 pairs are turned, as fast as they are in the whole head.
#[test]
fn partial_rotary_has_the_whole_heads_frequencies() {
    let model = described(&with(
        gemma4(),
        &json!({ "num_hidden_layers": 5, "num_kv_shared_layers": 0, "layer_types": null }),
    ));
    let full = model.layers[4].mixer.attention().unwrap();
    assert_eq!((full.head_dim, full.window), (512, None));
    let rope = &model.ropes[full.rope.unwrap().0 as usize];
    let inv_freq = rope.inv_freq(1);
    assert_eq!(inv_freq.len(), 256);
    let expected = 1e6f64.powf(-126.0 / 512.0);
    assert!((f64::from(inv_freq[63]) / expected - 1.0).abs() < 1e-7, "{}", inv_freq[63]);
    assert!(inv_freq[..64].iter().all(|freq| *freq > 0.0));
    assert!(inv_freq[64..].iter().all(|freq| freq.to_bits() == 0));
    // Row 10 of the behaviours: sliding layers have another rope, over heads of another width.
    let sliding = model.layers[0].mixer.attention().unwrap();
    assert_eq!((sliding.head_dim, sliding.window), (256, Some(512)));
    assert_eq!(model.ropes[sliding.rope.unwrap().0 as usize], Rope::plain(256, 10_000.0));
    assert_ne!(sliding.rope, full.rope);
}

#[test]
fn hostile_dimensions_are_refused_not_multiplied() {
    for more in [
        json!({ "global_head_dim": 4_294_967_294u32 }),
        json!({ "hidden_size_per_layer_input": 4_294_967_295u32 }),
        json!({ "hidden_size_per_layer_input": 1 << 30 }),
        json!({ "num_kv_shared_layers": 5 }),
        json!({ "vocab_size_per_layer_input": 4_294_967_295u32 }),
        json!({ "intermediate_size": 1 << 24, "use_double_wide_mlp": true }),
        json!({ "per_layer_config": { "1": { "head_dim": 3 } } }),
    ] {
        assert!(refused(&with(gemma4(), &more)).starts_with("config: "), "{more}");
    }
    let wide = json!({ "model_type": "phi3", "partial_rotary_factor": 1.5 });
    assert!(refused(&wide).contains("partial_rotary_factor"));
    let divided = json!({ "model_type": "granite", "logits_scaling": 0.0 });
    assert!(refused(&divided).contains("logit_scale"));
}
