//! Whole models, limits, and calls that cannot be made.

use packlight_formats::arch;
use packlight_formats::quant::{Assignment, Scheme};
use serde_json::json;

use super::*;
use crate::executor::CallError;

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
    let Some(gpu) = gpu(Caps::floor()) else { return };
    for kind in ["qwen3", "mistral"] {
        agree(kind, &gpu, &model(kind, 2), &[17, 1, 33, 3, 1]);
    }
}

/// Everything that only Gemma 4 has: layers of two shapes, keys and values of other layers, and per-layer inputs, whose
/// table stays on the host.
#[test]
fn gemma4_agrees_with_the_reference() {
    let Some(gpu) = gpu(Caps::floor()) else { return };
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

#[test]
fn a_prompt_in_one_call_or_token_by_token() {
    let Some(gpu) = gpu(Caps::floor()) else { return };
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

#[test]
fn lengths_shrink_and_grow_without_a_trace() {
    let Some(gpu) = gpu(Caps::floor()) else { return };
    let plan = model("qwen3", 2);
    let mut executor = executor(&gpu, &plan);
    let prompt = tokens(&plan, 48);
    let first = logits(&mut executor, &prompt, 0);
    let one = logits(&mut executor, &prompt[..1], 0);
    let five = logits(&mut executor, &prompt[1..6], 1);
    assert_eq!(logits(&mut executor, &prompt, 0), first);
    assert_eq!(logits(&mut executor, &prompt[..1], 0), one);
    assert_eq!(logits(&mut executor, &prompt[1..6], 1), five);
}

#[test]
fn narrow_limits_change_nothing() {
    let plan = model("qwen3", 2);
    // Bindings that just hold the KV cache, and grids folded at 40 workgroups: wgpu refuses whatever exceeds them.
    let binding_bytes = u64::from(CAPACITY.context) * 64 * 4;
    let narrow = Caps { binding_bytes, groups_per_dimension: 40, ..Caps::floor() };
    let (Some(wide), Some(narrow)) = (gpu(Caps::floor()), gpu(narrow)) else { return };
    let mut wide = executor(&wide, &plan);
    let mut narrow = executor(&narrow, &plan);
    for length in [1, 17, 48] {
        let prompt = tokens(&plan, length);
        assert_eq!(logits(&mut narrow, &prompt, 0), logits(&mut wide, &prompt, 0), "{length}");
    }
}

#[test]
fn pieces_of_a_table_and_of_a_matrix_equal_the_whole() {
    let mut bench = Bench::new(Q3);
    let x = bench.input(100);
    let weight = bench.matrix(51, 100);
    let bias = Some(bench.vector(51, Dtype::Float16));
    let out = bench.slot(Rows::Tokens, 51);
    bench.step(Op::Matmul { x, weight, bias, out });
    let plan = bench.finish(out);
    // Rows of 48 bytes: pieces of 6. No slot fits such limits, so only the placement has them.
    let tiny = Caps { binding_bytes: 300, ..Caps::floor() };
    let placement = Placement::new(&plan, &tiny).expect("places");
    let pieces = |placed: &Placed| match placed {
        Placed::Matrix { pieces, .. } => pieces.len(),
        Placed::Vector(_) | Placed::Host => 1,
    };
    let counts: Vec<_> = placement.weights.iter().map(pieces).collect();
    assert_eq!(counts, [7, 9, 1]);
    let Some(gpu) = gpu(Caps::floor()) else { return };
    let mut whole = executor(&gpu, &plan);
    let mut cut =
        block_on(GpuExecutor::placed(&gpu, &plan, CAPACITY, &placement)).expect("allocates");
    load(&mut cut, &plan);
    cut.finish().expect("complete");
    for length in [1, 17] {
        let call = tokens(&plan, length);
        assert_eq!(logits(&mut cut, &call, 0), logits(&mut whole, &call, 0), "{length} tokens");
    }
}

#[test]
fn layers_share_pipelines() {
    let Some(gpu) = gpu(Caps::floor()) else { return };
    let one = executor(&gpu, &model("qwen3", 1)).pipelines();
    assert_eq!(executor(&gpu, &model("qwen3", 2)).pipelines(), one);
}

#[test]
fn a_capacity_that_cannot_be_bound_leaves_the_device_usable() {
    let Some(gpu) = gpu(Caps::floor()) else { return };
    let plan = model("qwen3", 1);
    let error = block_on(GpuExecutor::new(
        &gpu,
        &plan,
        Capacity { context: 1 << 20, chunk: 1, outputs: 1 },
    ))
    .expect_err("too long");
    assert!(
        matches!(error, GpuError::Capacity(CapacityError::Context { fits: 524_288, .. })),
        "{error}"
    );
    agree("afterwards", &gpu, &plan, &[3]);
}

#[test]
fn nothing_runs_before_the_weights_are_complete() {
    let Some(gpu) = gpu(Caps::floor()) else { return };
    let plan = model("qwen3", 1);
    let mut executor = block_on(GpuExecutor::new(&gpu, &plan, CAPACITY)).expect("allocates");
    let missing = "model.norm.weight";
    for record in plan.weights.iter().flat_map(|weight| weight.storage.records()) {
        let bytes = content(record);
        let end = if record.name == missing { bytes.len() - 2 } else { bytes.len() };
        executor.write(record, 0, &bytes[..end / 4 * 4]).expect("record is taken");
    }
    let error = executor.finish().expect_err("incomplete");
    assert!(error.to_string().contains(missing), "{error}");
    let error = block_on(executor.forward(&[1], 0, Want::Argmax)).expect_err("incomplete");
    assert!(matches!(error, GpuError::NotLoaded), "{error}");
    let unknown = RecordSpec::new("lm_head.bias", Dtype::Float16, [4]);
    let error = executor.write(&unknown, 0, &[0; 8]).expect_err("unknown");
    assert!(error.to_string().contains("lm_head.bias"), "{error}");
}

#[test]
fn calls_that_do_not_fit_are_refused() {
    let Some(gpu) = gpu(Caps::floor()) else { return };
    let mut executor = executor(&gpu, &model("qwen3", 1));
    let mut refused =
        |tokens: &[u32], past| match block_on(executor.forward(tokens, past, Want::Argmax)) {
            Err(GpuError::Call(error)) => error,
            other => panic!("{other:?}"),
        };
    assert_eq!(refused(&[], 0), CallError::NoTokens);
    assert_eq!(refused(&[0; 49], 0), CallError::ChunkTooLong { tokens: 49, chunk: 48 });
    assert_eq!(refused(&[0; 2], 319), CallError::ContextFull { end: 321, context: 320 });
    assert_eq!(refused(&[300], 0), CallError::UnknownToken { token: 300, vocab: 300 });
}
