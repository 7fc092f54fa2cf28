//! Whole models.

use packlight_formats::arch;
use packlight_formats::quant::{Assignment, Scheme};
use serde_json::json;

use super::*;

/// A small Qwen3 (norms of heads, tied head) or Mistral (window, head of its own).
pub(crate) fn model(kind: &str, layers: u32) -> Plan {
    let mut config = json!({
        "model_type": kind,
        "vocab_size": 300,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
    });
    match kind {
        "mistral" => config["sliding_window"] = json!(20),
        _ => config["tie_word_embeddings"] = json!(true),
    }
    let model = arch::describe(&config, |_| true).expect("describes");
    Plan::lower(&model, &Assignment::uniform(Scheme::DEFAULT))
}

#[test]
fn models_agree_with_the_reference() {
    for gpu in floors() {
        for kind in ["qwen3", "mistral"] {
            agree(kind, &gpu, &model(kind, 2), &[17, 1, 33, 3, 1]);
        }
    }
}

/// Everything that only Gemma 4 has: layers of two shapes, keys and values of other layers, and per-layer inputs, whose
/// table stays on the host.
#[test]
fn gemma4_agrees_with_the_reference() {
    for gpu in floors() {
        let config = |key_is_value: bool| {
            json!({
                "model_type": "gemma4_text",
                "vocab_size": 300,
                "vocab_size_per_layer_input": 300,
                "hidden_size": 64,
                "intermediate_size": 96,
                "num_hidden_layers": 4,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "head_dim": 16,
                "global_head_dim": 32,
                "num_global_key_value_heads": 1,
                "attention_k_eq_v": key_is_value,
                "num_kv_shared_layers": 2,
                "use_double_wide_mlp": true,
                "hidden_size_per_layer_input": 32,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
                "sliding_window": 10,
                "max_position_embeddings": 512,
                "final_logit_softcapping": 5.0,
            })
        };
        for key_is_value in [false, true] {
            let model = arch::describe(&config(key_is_value), |_| true).expect("describes");
            let plan = Plan::lower(&model, &Assignment::uniform(Scheme::DEFAULT));
            let placement = Placement::new(&plan, &Caps::floor()).expect("places");
            let on_host = placement.weights.iter().filter(|placed| **placed == Placed::Host);
            assert_eq!(on_host.count(), 1);
            let what = format!("K is V: {key_is_value}");
            agree(&what, &gpu, &plan, &[17, 1, 33, 3, 1]);
        }
    }
}

#[test]
fn a_prompt_in_one_call_or_token_by_token() {
    for gpu in floors() {
        let plan = model("mistral", 2);
        let mut executor = executor(&gpu, &plan);
        let prompt = tokens(&plan, 33);
        let whole = logits(&mut executor, &prompt, 0);
        let single = (0..).zip(&prompt).flat_map(|(i, &token)| logits(&mut executor, &[token], i));
        close("token by token", &single.collect::<Vec<_>>(), &whole);

        // All that is wanted of the first part is its keys and values.
        let nothing = block_on(executor.forward(&prompt[..20], 0, Want::Nothing)).expect("runs");
        assert_eq!(nothing, Output::Nothing);
        let last = block_on(executor.forward(&prompt[20..], 20, Want::LastLogits)).expect("runs");
        let Output::Logits(last) = last else { panic!("logits were asked for") };
        close("in two parts", &last, &whole[32 * 300..]);
    }
}

/// Row 13 of the behaviours: one set of buffers for all lengths.
#[test]
fn lengths_shrink_and_grow_without_a_trace() {
    let Some(gpu) = gpu(Caps::floor()) else { return };
    let plan = model("qwen3", 2);
    let mut executor = executor(&gpu, &plan);
    agree("1, 5, the most, 5", &gpu, &plan, &[1, 5, 48, 5]);
    let prompt = tokens(&plan, 48);
    let first = logits(&mut executor, &prompt, 0);
    let one = logits(&mut executor, &prompt[..1], 0);
    let five = logits(&mut executor, &prompt[1..6], 1);
    assert_eq!(logits(&mut executor, &prompt, 0), first);
    assert_eq!(logits(&mut executor, &prompt[..1], 0), one);
    assert_eq!(logits(&mut executor, &prompt[1..6], 1), five);
}

/// What the device goes on with by itself is what it is led to token by token, rings included.
#[test]
fn tokens_ahead_are_those_of_one_at_a_time() {
    for gpu in floors() {
        for kind in ["qwen3", "mistral"] {
            let plan = model(kind, 2);
            let prompt = tokens(&plan, 7);
            let mut alone = executor(&gpu, &plan);
            let mut expected = Vec::new();
            let mut next = prompt.clone();
            let mut past = 0;
            for _ in 0..41 {
                let output = block_on(alone.forward(&next, past, Want::Argmax)).expect("runs");
                let Output::Token(token) = output else { panic!("a token was asked for") };
                past += u32::try_from(next.len()).expect("short");
                expected.push(token);
                next = vec![token];
            }
            let mut ahead = executor(&gpu, &plan);
            let mut found = block_on(ahead.greedy(&prompt, 0, 5)).expect("runs");
            for count in [1, 32, 3] {
                let past = u32::try_from(prompt.len() + found.len() - 1).expect("short");
                let last = *found.last().expect("some");
                found.extend(block_on(ahead.greedy(&[last], past, count)).expect("runs"));
            }
            assert_eq!(found, expected, "{kind}");
        }
    }
}

/// A layer of a token takes six dispatches, and each step of it can still be run alone.
#[test]
fn the_steps_of_a_token_are_fused() {
    let caps = Caps::floor();
    let of = |kind: &str, layers| {
        let plan = model(kind, layers);
        let placement = Placement::new(&plan, &caps).expect("places");
        let calls = crate::kernels::lower(&plan, &placement, &caps).expect("lowers");
        let live = Live { tokens: 1, past: 3, outputs: 1 };
        let runs = |call: &&crate::kernels::Call| {
            call.work.workgroups(live).is_some()
                && call.yields_to.as_ref().is_none_or(|rows| !rows.contains(&1))
        };
        for step in 0..plan.steps.len() {
            let alone = calls.iter().filter(|call| call.steps == (step..step + 1));
            assert!(alone.filter(|call| call.work.workgroups(live).is_some()).count() >= 1);
        }
        calls.iter().filter(runs).count()
    };
    // Norm and qkv, attention and its merge, output and sum, norm and gated product, down and sum.
    assert_eq!(of("qwen3", 3) - of("qwen3", 2), 6);
    // The table, and the norm with the head.
    assert_eq!(of("qwen3", 2), 2 + 2 * 6);
}
