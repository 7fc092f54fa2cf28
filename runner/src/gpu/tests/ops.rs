//! Every operation on its own, over odd sizes.

use packlight_formats::model::Activation;
use packlight_formats::rope::{Pairing, Rope, Scaling};

use super::*;
use crate::engine::{Engine, EngineError};
use crate::plan::{Cache, CacheId, Columns, Factor, Heads, RopeIndex};

/// Row 12 of the behaviours: shapes that fill no word, group or tile.
#[test]
fn matmul() {
    for gpu in floors() {
        // 160 columns fill whole groups of both layouts; the last has more words in a row than a workgroup takes at once.
        for (rows, columns) in
            [(1, 20), (5, 100), (33, 32), (130, 70), (66, 160), (3, 2100), (70, 2080)]
        {
            for layout in [Q4, Q3] {
                for bias in [None, Some(Dtype::Float16)] {
                    let mut bench = Bench::new(layout);
                    let x = bench.input(columns);
                    let weight = bench.matrix(rows, columns);
                    let bias = bias.map(|dtype| bench.vector(rows, dtype));
                    let out = bench.slot(Rows::Tokens, rows);
                    bench.step(Op::Matmul { x, weight, bias, out });
                    let what = format!("{rows} x {columns}, {} bits, bias {bias:?}", layout.bits);
                    agree(&what, &gpu, &bench.finish(out), &[1, 3, 17, 48]);
                }
            }
        }
    }
}

#[test]
fn weights_that_are_not_quantised() {
    let Some(gpu) = gpu(Caps::floor()) else { return };
    // Rows of an odd number of values begin within a word.
    for (rows, columns) in [(1, 20), (5, 100), (130, 71), (33, 2101), (2, 3)] {
        for dtype in [Dtype::Float16, Dtype::Bfloat16, Dtype::Float32] {
            let mut bench = Bench::new(Q4);
            let table = bench.plain(37, columns, dtype);
            let x = bench.slot(Rows::Tokens, columns);
            bench.step(Op::Gather { table, out: x });
            let weight = bench.plain(rows, columns, dtype);
            let out = bench.slot(Rows::Tokens, rows);
            bench.step(Op::Matmul { x, weight, bias: None, out });
            let plan = bench.finish(out);
            for (stored, plan) in [("stored", plan.clone()), ("native", native(plan))] {
                let what = format!("{rows} x {columns} {dtype} {stored}");
                agree(&what, &gpu, &plan, &[1, 3, 17, 48]);
            }
        }
    }
}

#[test]
fn norms() {
    let Some(gpu) = gpu(Caps::floor()) else { return };
    for width in [20, 300] {
        let mut bench = Bench::new(Q4);
        let x = bench.input(width);
        let weight = bench.vector(width, Dtype::Float32);
        let out = bench.slot(Rows::Tokens, width);
        bench.step(Op::RmsNorm { x, weight, eps: 1e-5, out });
        agree(&format!("rms_norm {width}"), &gpu, &bench.finish(out), &[1, 3, 17]);
    }
    for head_dim in [16, 20, 256] {
        let mut bench = Bench::new(Q4);
        let slot = bench.input(5 * head_dim);
        let weight = Some(bench.vector(head_dim, Dtype::Bfloat16));
        let x = Heads { slot, offset: head_dim, heads: 3, head_dim };
        bench.step(Op::HeadNorm { x, weight, eps: 1e-6 });
        let x = Heads { slot, offset: 0, heads: 1, head_dim };
        bench.step(Op::HeadNorm { x, weight: None, eps: 1e-6 });
        agree(&format!("head_norm {head_dim}"), &gpu, &bench.finish(slot), &[1, 3, 17]);
    }
}

#[test]
fn gates() {
    let Some(gpu) = gpu(Caps::floor()) else { return };
    for activation in [Activation::Silu, Activation::GeluTanh] {
        for width in [1, 20, 300] {
            let mut bench = Bench::new(Q3);
            let (both, other) = (bench.input(2 * width), bench.input(3 * width));
            let columns = |slot, offset| Columns { slot, offset };
            let gated = bench.slot(Rows::Tokens, width);
            let (gate, up) = (columns(both, 0), columns(both, width));
            bench.step(Op::Gate { gate, up, activation, out: gated });
            let out = bench.slot(Rows::Tokens, width);
            let (gate, up) = (columns(gated, 0), columns(other, 2 * width));
            bench.step(Op::Gate { gate, up, activation, out });
            agree(&format!("{activation:?} of {width}"), &gpu, &bench.finish(out), &[1, 3, 17]);
        }
    }
}

#[test]
fn elementwise() {
    let Some(gpu) = gpu(Caps::floor()) else { return };
    for width in [1, 20, 300] {
        let mut bench = Bench::new(Q3);
        let (x, y) = (bench.input(width), bench.input(width));
        let weight = bench.vector(1, Dtype::Float16);
        let copy = bench.slot(Rows::Tokens, width);
        bench.step(Op::Scale { x, by: Factor::Constant(7.0) });
        bench.step(Op::Copy { x, out: copy });
        bench.step(Op::Scale { x, by: Factor::Weight(weight) });
        bench.step(Op::Add { x: copy, y, scale: Some(-0.3) });
        bench.step(Op::Softcap { x: copy, cap: 2.0 });
        bench.step(Op::Add { x, y: copy, scale: None });
        agree(&format!("width {width}"), &gpu, &bench.finish(x), &[1, 3, 17]);
    }
}

#[test]
fn rows_of_a_table_on_the_host() {
    let Some(gpu) = gpu(Caps::floor()) else { return };
    let mut bench = Bench::new(Q3);
    let (x, table) = (bench.input(50), bench.matrix(40, 50));
    let rows = bench.slot(Rows::Tokens, 50);
    bench.step(Op::HostGather { table, out: rows });
    bench.step(Op::Add { x: rows, y: x, scale: None });
    let plan = bench.finish(rows);
    agree("host table", &gpu, &plan, &[1, 3, 17, 2]);
}

/// What a test of attention leaves to chance: nothing.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
    pub(super) head_dim: u32,
    /// Values of a head that are turned.
    pub(super) turned: u32,
    pub(super) softcap: Option<f32>,
    pub(super) window: Option<u32>,
}

/// Queries, keys and values from one slot through rotation and cache to the mixed heads.
pub(super) fn attention(shape: Shape) -> Plan {
    let Shape { heads, kv_heads, head_dim, turned, softcap, window } = shape;
    let mut bench = Bench::new(Q4);
    let slot = bench.input((heads + 2 * kv_heads) * head_dim);
    let part = |first: u32, heads| Heads { slot, offset: first * head_dim, heads, head_dim };
    let (q, k, v) = (part(0, heads), part(heads, kv_heads), part(heads + kv_heads, kv_heads));
    bench.plan.ropes.push(Rope { width: turned, ..Rope::plain(head_dim, 10_000.0) });
    bench.plan.caches.push(Cache { kv_heads, head_dim, window });
    let (rope, cache) = (RopeIndex(0), CacheId(0));
    let out = bench.slot(Rows::Tokens, heads * head_dim);
    bench.step(Op::Rope { x: q, rope });
    bench.step(Op::Rope { x: k, rope });
    bench.step(Op::StoreKv { k, v, cache });
    let scale = 1.0 / (head_dim as f32).sqrt();
    bench.step(Op::Attend { q, cache, scale, softcap, window, out });
    bench.finish(out)
}

/// Row 19: several queries share keys, at one token and at many.
#[test]
fn attention_of_every_shape() {
    for gpu in floors() {
        let shapes = [
            (8, 2, 16),
            (32, 8, 20),
            (8, 1, 32),
            (4, 4, 48),
            (8, 2, 64),
            (2, 1, 128),
            (2, 1, 256),
            (1, 1, 512),
        ];
        for (heads, kv_heads, head_dim) in shapes {
            for window in [None, Some(5)] {
                let what = format!("{heads}:{kv_heads} heads of {head_dim}, window {window:?}");
                let turned = head_dim;
                let shape = Shape { heads, kv_heads, head_dim, turned, softcap: None, window };
                agree(&what, &gpu, &attention(shape), &[1, 3, 17, 1]);
            }
        }
    }
}

/// Row 19: mixed heads that change places do not go unnoticed.
#[test]
fn swapped_heads_are_noticed() {
    let Some(gpu) = gpu(Caps::floor()) else { return };
    for (heads, kv_heads) in [(8, 2), (32, 8), (8, 1)] {
        let plan = attention(Shape { heads, kv_heads, ..SMALL });
        let mut executor = executor(&gpu, &plan);
        for length in [1, 17] {
            let found = logits(&mut executor, &tokens(&plan, length), 0);
            let width = (heads * SMALL.head_dim) as usize;
            let mut swapped = found.clone();
            swapped.chunks_mut(width).for_each(|row| row.rotate_left(SMALL.head_dim as usize));
            let error: f32 = found.iter().zip(&swapped).map(|(a, b)| (a - b).powi(2)).sum();
            let size: f32 = found.iter().map(|a| a * a).sum();
            // At the first position heads of one group mix the same single value; groups still differ.
            let same = length == 1 && kv_heads == 1;
            assert_eq!((error / size).sqrt() < 1e-3, same, "{heads}:{kv_heads}, {length} tokens");
        }
    }
}

/// Row 15: with as many queries as before, more keys are read.
#[test]
fn keys_alone_may_become_more() {
    for gpu in floors() {
        let plan = attention(SMALL);
        let (mut found, mut expected) = (executor(&gpu, &plan), reference(&plan));
        let all = tokens(&plan, 200);
        let mut answers = Vec::new();
        let mut past = 0;
        for length in [48, 1, 48, 48, 1, 48, 1] {
            // The same token each time it comes alone.
            let call = if length == 1 { &all[..1] } else { &all[past..past + length] };
            let start = u32::try_from(past).expect("short");
            let answer = logits(&mut found, call, start);
            let Output::Logits(wanted) =
                expected.forward(call, start, Want::AllLogits).expect("runs")
            else {
                panic!("logits were asked for")
            };
            close(&format!("{length} after {past}"), &answer, &wanted);
            if length == 1 {
                answers.push(answer);
            }
            past += length;
        }
        assert!(answers[0] != answers[1] && answers[1] != answers[2]);
    }
}

pub(super) const SMALL: Shape =
    Shape { heads: 4, kv_heads: 2, head_dim: 16, turned: 16, softcap: None, window: None };

#[test]
fn attention_with_softcaps_and_partial_rotation() {
    for gpu in floors() {
        for (softcap, turned) in [(Some(0.1), 16), (None, 12), (Some(2.0), 4)] {
            let plan = attention(Shape { turned, softcap, ..SMALL });
            agree(&format!("softcap {softcap:?}, {turned} turned"), &gpu, &plan, &[1, 17, 3]);
        }
    }
}

#[test]
fn every_scaling_of_rotation() {
    let Some(gpu) = gpu(Caps::floor()) else { return };
    let scalings = [
        Scaling::Linear { factor: 8.0 },
        Scaling::Proportional { pairs: 3, factor: 1.0 },
        Scaling::LongRope {
            short: (0..8u8).map(|i| 1.0 + f64::from(i) / 8.0).collect(),
            long: vec![4.0; 8],
            original_context: 64,
            attention_factor: 1.2,
        },
        Scaling::Yarn {
            factor: 4.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            original_context: 64,
            truncate: true,
            attention_factor: 1.1,
        },
    ];
    for scaling in scalings {
        let mut plan = attention(SMALL);
        plan.ropes[0].scaling = scaling.clone();
        let (mut found, mut expected) = (executor(&gpu, &plan), reference(&plan));
        let call = tokens(&plan, 17);
        for length in [0, 65] {
            found.set_length(length);
            expected.set_length(length);
            let found = logits(&mut found, &call, 0);
            let Output::Logits(expected) =
                expected.forward(&call, 0, Want::AllLogits).expect("runs")
            else {
                panic!("logits were asked for")
            };
            close(&format!("{scaling:?} at {length}"), &found, &expected);
        }
    }
}

/// Row 18 of the behaviours: which values are turned together is the description's to say.
#[test]
fn either_pairing() {
    for gpu in floors() {
        let mut results = Vec::new();
        for pairing in [Pairing::Halves, Pairing::Neighbours] {
            for turned in [16, 12] {
                let mut plan = attention(Shape { turned, ..SMALL });
                plan.ropes[0].pairing = pairing;
                agree(&format!("{pairing:?}, {turned} turned"), &gpu, &plan, &[1, 17, 3]);
                results.push(logits(&mut executor(&gpu, &plan), &tokens(&plan, 17), 0));
            }
        }
        // The wrong one shows.
        let error = |a: &[f32], b: &[f32]| a.iter().zip(b).any(|(a, b)| (a - b).abs() > 0.01);
        assert!(error(&results[0], &results[2]) && error(&results[1], &results[3]));
    }
}

#[test]
fn attention_over_several_blocks_of_keys() {
    // For few queries 64 keys are a workgroup's share and a block, with 64 threads two; windows end inside of one, at its
    // border and beyond it.
    let narrow = gpu(Caps { invocations: 64, ..Caps::floor() });
    for gpu in floors().into_iter().chain(narrow) {
        for window in [None, Some(100), Some(128), Some(150)] {
            let plan = attention(Shape { window, ..SMALL });
            agree(&format!("window {window:?}"), &gpu, &plan, &[48, 48, 48, 48, 1, 48, 17, 1]);
        }
    }
}

#[test]
fn argmax_takes_the_first_of_equals() {
    let Some(gpu) = gpu(Caps::floor()) else { return };
    for width in [1, 200, 1000] {
        let mut bench = Bench::new(Q4);
        let x = bench.input(width);
        let plan = bench.finish(x);
        let (mut executor, mut reference) = (executor(&gpu, &plan), reference(&plan));
        // Rows of sixteen different values times a few scales: the largest occurs again and again.
        for token in 0..plan.vocab() {
            let found = block_on(executor.forward(&[3, token], 0, Want::Argmax)).expect("runs");
            let expected = reference.forward(&[3, token], 0, Want::Argmax).expect("runs");
            assert_eq!(found, expected, "row {token} of {width} values");
        }
    }
}

/// Nobody is to take what came of an overflow for the first token of the vocabulary.
#[test]
fn logits_that_are_no_numbers_have_no_likeliest_token() {
    let Some(gpu) = gpu(Caps::floor()) else { return };
    for factor in [f32::NAN, f32::INFINITY] {
        let mut bench = Bench::new(Q4);
        let x = bench.input(1000);
        bench.step(Op::Scale { x, by: Factor::Constant(factor) });
        let plan = bench.finish(x);
        let engines = [
            Engine::of_gpu(executor(&gpu, &plan), CAPACITY),
            Engine::of_reference(reference(&plan), CAPACITY),
        ];
        for mut engine in engines {
            let error = block_on(engine.feed(&[3, 1], Want::Argmax)).expect_err("no numbers");
            assert!(matches!(error, EngineError::NoToken(1)), "{error}");
            assert!(error.hint().is_some_and(|hint| hint.contains("verify")));
            // Nor where several are made at once.
            let error = block_on(engine.go_on(2, 4)).expect_err("no numbers");
            assert!(matches!(error, EngineError::NoToken(2)), "{error}");
        }
    }
}
