//! Caches of sliding layers are rings. The oracle keeps every position.

use packlight_formats::arch;
use packlight_formats::manifest::requires::Requires;
use packlight_formats::model::{CHUNK, Model};
use packlight_formats::quant::{Assignment, Scheme};
use serde_json::json;

use super::ops::{SMALL, Shape, attention};
use super::*;
use crate::executor::CallError;

/// The same plan with caches that hold every position.
fn whole(plan: &Plan) -> Plan {
    let mut whole = plan.clone();
    whole.caches.iter_mut().for_each(|cache| cache.window = None);
    whole
}

/// Layers of both kinds, of which the last two read the caches of the first two.
fn gemma4() -> Model {
    let config = json!({
        "model_type": "gemma4_text",
        "vocab_size": 300,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "global_head_dim": 32,
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 0,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        "sliding_window": 10,
        "max_position_embeddings": 512,
    });
    arch::describe(&config, |_| true).expect("describes")
}

fn plan_of(model: &Model) -> Plan {
    Plan::lower(model, &Assignment::uniform(Scheme::DEFAULT))
}

/// Feeds calls of these lengths to rings on both devices and to the oracle, and compares every row of the result.
fn rings_hold_what_is_seen(what: &str, plan: &Plan, capacity: Capacity, lengths: &[usize]) {
    let all = tokens(plan, lengths.iter().sum());
    let mut oracle = reference_of(&whole(plan), capacity);
    let mut ring = reference_of(plan, capacity);
    let mut gpus: Vec<_> = floors().iter().map(|gpu| executor_of(gpu, plan, capacity)).collect();
    let mut past = 0;
    for &length in lengths {
        let (call, start) = (&all[past..past + length], u32::try_from(past).expect("short"));
        let call = Inputs { tokens: call, rows: &host_rows(plan, call) };
        let expected_rows = expected(&mut oracle, call, start);
        // Attention that were left out would be zero.
        let width = expected_rows.len() / length;
        assert!(expected_rows.chunks(width).all(|row| row.iter().any(|x| *x != 0.0)), "{what}");
        let found = expected(&mut ring, call, start);
        assert_eq!(found, expected_rows, "{what}: {length} tokens after {past}");
        for gpu in &mut gpus {
            let found = logits(gpu, call, start);
            close(&format!("{what}: {length} tokens after {past}"), &found, &expected_rows);
        }
        past += length;
    }
}

/// Row 8 of the behaviours: attention that slides is real attention.
#[test]
fn six_hundred_tokens_through_a_window_of_512() {
    let plan = attention(Shape { window: Some(512), ..SMALL });
    let capacity = Capacity { context: 640, chunk: 48, outputs: 48 };
    assert_eq!(plan.caches[0].positions(capacity), 559);
    let lengths: Vec<usize> = [48; 12].into_iter().chain([1, 20, 3]).collect();
    rings_hold_what_is_seen("window 512", &plan, capacity, &lengths);
}

#[test]
fn positions_wrap_many_times() {
    // Rings of 4, 7 and 52 rows; the last call of each begins where an earlier one is overwritten.
    for (window, chunk) in [(1, 4), (5, 3), (5, 48)] {
        let plan = attention(Shape { window: Some(window), ..SMALL });
        let capacity = Capacity { context: 320, chunk, outputs: chunk };
        assert_eq!(plan.caches[0].positions(capacity), window + chunk - 1);
        let lengths: Vec<usize> = (0..).map(|i| 1 + i % chunk as usize).take(60).collect();
        let lengths: Vec<usize> = lengths
            .into_iter()
            .scan(0, |sum, n| {
                *sum += n;
                (*sum <= 320).then_some(n)
            })
            .collect();
        rings_hold_what_is_seen(&format!("window {window}"), &plan, capacity, &lengths);
    }
}

/// Layers that share a ring read it after its owner wrote the whole call.
#[test]
fn shared_rings() {
    let plan = plan_of(&gemma4());
    assert_eq!(plan.caches.iter().map(|c| c.window).collect::<Vec<_>>(), [Some(10), None]);
    rings_hold_what_is_seen("gemma4", &plan, CAPACITY, &[17, 1, 33, 48, 3, 48, 1, 48, 48, 5]);
}

/// A layer without a window that reads another's cache needs all of it.
#[test]
fn a_ring_is_as_long_as_its_furthest_reader_looks() {
    let mut model = gemma4();
    model.layers[2].mixer.attention_mut().expect("attends").window = Some(30);
    assert_eq!(plan_of(&model).caches[0].window, Some(30));
    rings_hold_what_is_seen("30", &plan_of(&model), CAPACITY, &[17, 48, 48, 3]);
    model.layers[2].mixer.attention_mut().expect("attends").window = None;
    assert_eq!(plan_of(&model).caches[0].window, None);
}

/// Row 7 of the behaviours: a prefill that spans several blocks has room for all of them before it begins.
#[test]
fn prompts_around_a_block_equal_single_tokens() {
    let plan = plan_of(&gemma4());
    let capacity = Capacity { context: 320, chunk: 16, outputs: 16 };
    let mut gpu = gpu(Caps::floor()).map(|gpu| executor_of(&gpu, &plan, capacity));
    for length in [15, 16, 17, 33] {
        let prompt = tokens(&plan, length);
        let mut reference = reference_of(&plan, capacity);
        let single: Vec<f32> = (0..)
            .zip(&prompt)
            .flat_map(|(i, &token)| expected(&mut reference, &[token], i))
            .collect();
        let starts = (0u32..).step_by(16);
        let chunked: Vec<f32> = starts
            .clone()
            .zip(prompt.chunks(16))
            .flat_map(|(start, call)| expected(&mut reference, call, start))
            .collect();
        close(&format!("reference, {length}"), &chunked, &single);
        let Some(gpu) = &mut gpu else { continue };
        let chunked = starts.zip(prompt.chunks(16));
        let chunked: Vec<f32> =
            chunked.flat_map(|(start, call)| logits(gpu, call, start)).collect();
        close(&format!("gpu, {length}"), &chunked, &single);
    }
}

/// A session may go back as far as rings remember, and no further.
#[test]
fn what_a_ring_has_forgotten_is_not_made_up() {
    let plan = plan_of(&gemma4());
    let capacity = Capacity { context: 320, chunk: 16, outputs: 16 };
    let prompt = tokens(&plan, 64);
    let mut oracle = reference_of(&whole(&plan), capacity);
    let mut ring = reference_of(&plan, capacity);
    for (start, call) in (0..).step_by(16).zip(prompt.chunks(16)) {
        assert_eq!(expected(&mut ring, call, start), expected(&mut oracle, call, start));
    }
    // 16 positions back, then on again.
    for (start, call) in [(48, &prompt[..3]), (51, &prompt[20..36])] {
        assert_eq!(expected(&mut ring, call, start), expected(&mut oracle, call, start));
    }
    let error = ring.forward(&prompt[..1], 50, Want::Argmax).expect_err("overwritten").to_string();
    assert_eq!(error, CallError::Forgotten { past: 50, reach: 16, furthest: 67 }.to_string());
    // From the beginning, everything is written anew.
    let call = &prompt[..5];
    assert_eq!(expected(&mut ring, call, 0), expected(&mut oracle, call, 0));
    assert_eq!(expected(&mut ring, &prompt[5..9], 5), expected(&mut oracle, &prompt[5..9], 5));
}

/// What packlight.json says of the cache is what is allocated.
#[test]
fn requirements_count_what_is_allocated() {
    for context in [64, 4096] {
        let model = Model { context, ..gemma4() };
        let assignment = Assignment::uniform(Scheme::DEFAULT);
        let requires = Requires::of(&model, &assignment);
        let plan = Plan::lower(&model, &assignment);
        let capacity = Capacity { context, chunk: CHUNK.min(context), outputs: 1 };
        let rows = plan.caches.iter().map(|c| u64::from(c.positions(capacity)) * c.width());
        assert_eq!(requires.kv_bytes, rows.sum::<u64>() * 2 * 4);
        let (sliding, full) = (2 * 16, 32);
        assert_eq!(requires.kv_bytes_per_token, (sliding + 2 * full) * 2 * 4);
        if let Some(gpu) = gpu(Caps::floor()) {
            let allocated = executor_of(&gpu, &plan, capacity).cache_bytes();
            assert_eq!(allocated, requires.kv_bytes);
        }
    }
}
