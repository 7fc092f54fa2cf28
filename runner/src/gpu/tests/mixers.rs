//! Routed experts and short convolutions, on their own and in the models that have them.

use packlight_formats::arch;
use packlight_formats::model::Activation;
use packlight_formats::quant::{Assignment, Scheme};
use serde_json::{Value, json};

use super::*;
use crate::plan::{Columns, History, HistoryId};

/// A router, and one matrix of each of its experts.
fn experts(bench: &mut Bench, count: u32, per_token: u32, [rows, columns]: [u32; 2]) -> SlotId {
    let x = bench.input(columns);
    let router = bench.plain(count, columns, Dtype::Float16);
    let logits = bench.slot(Rows::Tokens, count);
    bench.step(Op::Matmul { x, weight: router, bias: None, out: logits });
    let [chosen, shares] = [(); 2].map(|()| bench.slot(Rows::Tokens, per_token));
    let normalised = per_token.is_multiple_of(2);
    bench.step(Op::Route { logits, normalised, experts: chosen, shares });
    let weight = bench.matrix(count * 2 * rows, columns);
    let both = bench.slot(Rows::PerToken(per_token), 2 * rows);
    let bias = (count > 4).then(|| bench.vector(count * 2 * rows, Dtype::Bfloat16));
    bench.step(Op::ExpertMatmul { x, experts: chosen, weight, bias, out: both });
    let gated = bench.slot(Rows::PerToken(per_token), rows);
    let [gate, up] = [0, rows].map(|offset| Columns { slot: both, offset });
    bench.step(Op::Gate { gate, up, activation: Activation::Silu, out: gated });
    let weight = bench.plain(count * columns, rows, Dtype::Bfloat16);
    let each = bench.slot(Rows::PerToken(per_token), columns);
    bench.step(Op::ExpertMatmul { x: gated, experts: chosen, weight, bias: None, out: each });
    let out = bench.slot(Rows::Tokens, columns);
    bench.step(Op::Mix { x: each, shares, out });
    out
}

#[test]
fn experts_of_odd_shapes() {
    let Some(gpu) = gpu(Caps::floor()) else { return };
    for (count, per_token, shape) in
        [(1, 1, [2, 20]), (4, 2, [64, 64]), (5, 5, [18, 100]), (130, 3, [34, 70])]
    {
        for layout in [Q4, Q3] {
            let mut bench = Bench::new(layout);
            let out = experts(&mut bench, count, per_token, shape);
            let what = format!("{per_token} of {count} experts {shape:?}, {} bits", layout.bits);
            agree(&what, &gpu, &bench.finish(out), &[1, 3, 17, 1]);
        }
    }
}

#[test]
fn pieces_of_experts_equal_the_whole() {
    let Some(gpu) = gpu(Caps::floor()) else { return };
    let mut bench = Bench::new(Q4);
    let out = experts(&mut bench, 5, 2, [18, 100]);
    let plan = bench.finish(out);
    // Pieces end within experts.
    let tiny = Caps { binding_bytes: 2000, ..Caps::floor() };
    let placement = Placement::new(&plan, &tiny).expect("places");
    let cut = placement
        .weights
        .iter()
        .filter(|placed| matches!(placed, Placed::Matrix { pieces, .. } if pieces.len() > 5));
    assert_eq!(cut.count(), 2);
    let mut whole = executor(&gpu, &plan);
    let cut = block_on(GpuLoader::placed(&gpu, &plan, CAPACITY, placement));
    let mut cut = loaded(cut.expect("allocates"), &plan);
    for length in [1, 17] {
        let call = tokens(&plan, length);
        assert_eq!(logits(&mut cut, &call, 0), logits(&mut whole, &call, 0), "{length} tokens");
    }
}

/// Of equal probabilities the first experts are taken.
#[test]
fn equal_experts() {
    let Some(gpu) = gpu(Caps::floor()) else { return };
    let mut bench = Bench::new(Q4);
    // Rows of sixteen different values, times a few scales.
    let logits = bench.input(200);
    let [experts, shares] = [(); 2].map(|()| bench.slot(Rows::Tokens, 9));
    bench.step(Op::Route { logits, normalised: true, experts, shares });
    bench.step(Op::Add { x: experts, y: shares, scale: None });
    agree("equal experts", &gpu, &bench.finish(experts), &[1, 17]);
}

/// What a convolution looks back at outlives a call, and the ring that holds it wraps.
#[test]
fn short_convolutions() {
    let Some(gpu) = gpu(Caps::floor()) else { return };
    for (window, bias) in [(1, false), (3, true), (4, false), (60, true)] {
        let width = 33;
        let mut bench = Bench::new(Q3);
        let slot = bench.input(3 * width);
        let part = |i| Columns { slot, offset: i * width };
        bench.plan.histories.push(History { width, window });
        let history = HistoryId(0);
        bench.step(Op::StoreProduct { x: part(2), by: part(0), history });
        let kernel = bench.vector(width * window, Dtype::Float16);
        let bias = bias.then(|| bench.vector(width, Dtype::Float16));
        let out = bench.slot(Rows::Tokens, width);
        bench.step(Op::Convolve { history, kernel, bias, gate: part(1), out });
        let lengths = [2, 1, 48, 5, 48, 48, 1, 1, 48, 17, 48];
        agree(&format!("window {window}"), &gpu, &bench.finish(out), &lengths);
    }
}

fn plan_of(config: &Value) -> Plan {
    let model = arch::describe(config, |_| true).expect("describes");
    Plan::lower(&model, &Assignment::uniform(Scheme::DEFAULT))
}

fn config(model_type: &str) -> Value {
    json!({
        "model_type": model_type,
        "vocab_size": 300,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
    })
}

#[test]
fn models_with_experts_and_with_convolutions() {
    let Some(gpu) = gpu(Caps::floor()) else { return };
    let mut moe = config("qwen3_moe");
    moe["num_experts"] = json!(6);
    moe["num_experts_per_tok"] = json!(3);
    moe["moe_intermediate_size"] = json!(40);
    moe["mlp_only_layers"] = json!([1]);
    let mut lfm2 = config("lfm2");
    lfm2["layer_types"] = json!(["conv", "full_attention", "conv"]);
    lfm2["conv_L_cache"] = json!(4);
    lfm2["conv_bias"] = json!(true);
    for config in [moe, lfm2] {
        let plan = plan_of(&config);
        agree(&config["model_type"].to_string(), &gpu, &plan, &[17, 1, 33, 3, 1]);
        // A session that begins anew knows nothing of the last one.
        let mut executor = executor(&gpu, &plan);
        let prompt = tokens(&plan, 48);
        let first = logits(&mut executor, &prompt, 0);
        assert_eq!(logits(&mut executor, &prompt[..5], 0), first[..5 * 300]);
        let fresh = logits(&mut executor, &prompt, 0);
        assert_eq!(fresh, first);
    }
}
