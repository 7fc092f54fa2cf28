//! Every operation on its own, over odd sizes.

use packlight_formats::model::Activation;
use packlight_formats::rope::{Rope, Scaling};

use super::*;
use crate::plan::{Cache, CacheId, Heads, RopeIndex};

#[test]
fn matmul() {
    let Some(gpu) = gpu(Caps::floor()) else { return };
    // 160 columns fill whole groups of both layouts; the last has more words in a row than a workgroup takes at once.
    for (rows, columns) in [(1, 20), (5, 100), (33, 32), (130, 70), (66, 160), (3, 2100)] {
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
        let weight = bench.vector(head_dim, Dtype::Bfloat16);
        let x = Heads { slot, offset: head_dim, heads: 3, head_dim };
        bench.step(Op::HeadNorm { x, weight, eps: 1e-6 });
        agree(&format!("head_norm {head_dim}"), &gpu, &bench.finish(slot), &[1, 3, 17]);
    }
}

#[test]
fn elementwise() {
    let Some(gpu) = gpu(Caps::floor()) else { return };
    for width in [1, 20, 300] {
        let mut bench = Bench::new(Q3);
        let x = bench.input(2 * width);
        let y = bench.input(width);
        let out = bench.slot(Rows::Tokens, width);
        bench.step(Op::Gate { x, activation: Activation::Silu, out });
        bench.step(Op::Add { x: out, y });
        agree(&format!("gate and add {width}"), &gpu, &bench.finish(out), &[1, 3, 17]);
    }
}

/// Queries, keys and values from one slot through rotation and cache to the mixed heads.
fn attention(heads: u32, kv_heads: u32, head_dim: u32, window: Option<u32>) -> Plan {
    let mut bench = Bench::new(Q4);
    let slot = bench.input((heads + 2 * kv_heads) * head_dim);
    let part = |first: u32, heads| Heads { slot, offset: first * head_dim, heads, head_dim };
    let (q, k, v) = (part(0, heads), part(heads, kv_heads), part(heads + kv_heads, kv_heads));
    bench.plan.ropes.push(Rope { head_dim, theta: 10_000.0, scaling: Scaling::None });
    bench.plan.caches.push(Cache { kv_heads, head_dim });
    let (rope, cache) = (RopeIndex(0), CacheId(0));
    let out = bench.slot(Rows::Tokens, heads * head_dim);
    bench.step(Op::Rope { x: q, rope });
    bench.step(Op::Rope { x: k, rope });
    bench.step(Op::StoreKv { k, v, cache });
    let scale = 1.0 / (head_dim as f32).sqrt();
    bench.step(Op::Attend { q, cache, scale, window, out });
    bench.finish(out)
}

#[test]
fn attention_of_every_shape() {
    let Some(gpu) = gpu(Caps::floor()) else { return };
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
            let plan = attention(heads, kv_heads, head_dim, window);
            agree(&what, &gpu, &plan, &[1, 3, 17, 1]);
        }
    }
}

#[test]
fn attention_over_several_blocks_of_keys() {
    let Some(gpu) = gpu(Caps::floor()) else { return };
    // 128 keys make a block; windows end inside of one, at its border and beyond it.
    for window in [None, Some(100), Some(128), Some(150)] {
        let plan = attention(4, 2, 16, window);
        agree(&format!("window {window:?}"), &gpu, &plan, &[48, 48, 48, 48, 1, 48, 17, 1]);
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
