//! Limits, grids and calls that cannot be made.

use super::models::model;
use super::*;
use crate::executor::CallError;
use crate::kernels;
use crate::plan::{Cache, CacheId, Heads};

/// Rows 16 and 24 of the behaviours: folded grids and weights in pieces.
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
fn a_capacity_that_cannot_be_bound_leaves_the_device_usable() {
    let Some(gpu) = gpu(Caps::floor()) else { return };
    let plan = model("qwen3", 1);
    let error =
        block_on(GpuLoader::new(&gpu, &plan, Capacity { context: 1 << 20, chunk: 1, outputs: 1 }))
            .expect_err("too long");
    assert!(
        matches!(error, GpuError::Capacity(CapacityError::Context { fits: 524_288, .. })),
        "{error}"
    );
    assert!(error.hint().is_some_and(|hint| hint.contains("-n")));
    agree("afterwards", &gpu, &plan, &[3]);
}

/// Row 23: devices that allow fewer threads than kernels want run everything all the same.
#[test]
fn few_threads_suffice() {
    for invocations in [128, 64] {
        let caps = Caps { invocations, ..Caps::floor() };
        let Some(gpu) = gpu(caps) else { return };
        for kind in ["qwen3", "mistral"] {
            agree(&format!("{kind}, {invocations} threads"), &gpu, &model(kind, 2), &[17, 1, 33]);
        }
        for (rows, columns, layout) in [(70, 100, Q3), (33, 2100, Q4)] {
            let mut bench = Bench::new(layout);
            let x = bench.input(columns);
            let weight = bench.matrix(rows, columns);
            let out = bench.slot(Rows::Tokens, rows);
            bench.step(Op::Matmul { x, weight, bias: None, out });
            agree(&format!("{invocations} threads"), &gpu, &bench.finish(out), &[1, 40]);
        }
        // The widest heads there are.
        let mut bench = Bench::new(Q4);
        let slot = bench.input(3 * 512);
        let heads = |i: u32| Heads { slot, offset: i * 512, heads: 1, head_dim: 512 };
        bench.plan.caches.push(Cache { kv_heads: 1, head_dim: 512, window: None });
        let out = bench.slot(Rows::Tokens, 512);
        let cache = CacheId(0);
        bench.step(Op::StoreKv { k: heads(1), v: heads(2), cache });
        let q = heads(0);
        bench.step(Op::Attend { q, cache, scale: 0.05, softcap: None, window: None, out });
        agree(&format!("{invocations} threads"), &gpu, &bench.finish(out), &[48, 48, 48, 1]);
    }
}

/// Row 13: what is dispatched follows the live lengths.
#[test]
fn dispatches_follow_the_live_lengths() {
    let plan = model("qwen3", 2);
    let caps = Caps::floor();
    let placement = Placement::new(&plan, &caps).expect("places");
    let calls = kernels::lower(&plan, &placement, &caps).expect("lowers");
    let workgroups = |tokens| {
        let live = Live { tokens, past: 0, outputs: 1 };
        calls.iter().filter_map(|call| call.work.workgroups(live)).sum::<u64>()
    };
    assert!(workgroups(1) < workgroups(5) && workgroups(5) < workgroups(48));
    // Row 15: where keys alone become more, only those dispatches grow that divide them.
    let (before, later) =
        (Live { tokens: 1, past: 0, outputs: 1 }, Live { tokens: 1, past: 300, outputs: 1 });
    for call in &calls {
        let (before, after) = (call.work.workgroups(before), call.work.workgroups(later));
        let times = if call.work.spread.is_some() { 5 } else { 1 };
        assert_eq!(after, before.map(|before| before * times), "{}", call.kernel.name);
    }
}

/// Row 16: more workgroups than a dimension holds. None at all is another matter, and never gets there.
#[test]
fn more_rows_than_workgroups_of_a_dimension() {
    // The fewer threads a workgroup has, the sooner it is done.
    let Some(gpu) = gpu(Caps { invocations: 64, ..Caps::floor() }) else { return };
    let mut bench = Bench::new(Q4);
    let x = bench.input(4);
    let weight = bench.vector(4, Dtype::Float16);
    let out = bench.slot(Rows::Tokens, 4);
    // A workgroup a row.
    bench.step(Op::RmsNorm { x, weight, eps: 1e-5, out });
    let plan = bench.finish(out);
    let capacity = Capacity { context: 70_000, chunk: 70_000, outputs: 70_000 };
    let mut executor = executor_of(&gpu, &plan, capacity);
    let mut reference = reference_of(&plan, capacity);
    for rows in [65_535, 65_536, 70_000] {
        let call = tokens(&plan, rows);
        let Output::Logits(expected) = reference.forward(&call, 0, Want::AllLogits).expect("runs")
        else {
            panic!("logits were asked for")
        };
        close(&format!("{rows} rows"), &logits(&mut executor, &call, 0), &expected);
    }
    let error = block_on(executor.forward(&[], 0, Want::AllLogits)).expect_err("nothing to do");
    assert!(matches!(error, GpuError::Call(CallError::NoTokens)), "{error}");
}

/// Row 17: whatever cannot work is refused before anything is allocated.
#[test]
fn a_bad_shape_leaves_nothing_behind() {
    let Some(gpu) = gpu(Caps::floor()) else { return };
    let mut bench = Bench::new(Q4);
    let slot = bench.input(3 * 513);
    let heads = |i: u32| Heads { slot, offset: i * 513, heads: 1, head_dim: 513 };
    let (q, k, v, cache) = (heads(0), heads(1), heads(2), CacheId(0));
    bench.plan.caches.push(Cache { kv_heads: 1, head_dim: 513, window: None });
    let out = bench.slot(Rows::Tokens, 513);
    bench.step(Op::StoreKv { k, v, cache });
    bench.step(Op::Attend { q, cache, scale: 0.05, softcap: None, window: None, out });
    let plan = bench.finish(out);
    let allocated =
        || gpu.device.generate_allocator_report().map(|report| report.total_allocated_bytes);
    let before = allocated();
    let error = block_on(GpuLoader::new(&gpu, &plan, CAPACITY)).expect_err("too wide");
    assert!(matches!(error, GpuError::Plan(PlanError::HeadDim { head_dim: 513, .. })), "{error}");
    assert_eq!(allocated(), before);
    agree("afterwards", &gpu, &model("qwen3", 1), &[3]);
}

#[test]
fn a_lost_device_is_said_to_be_lost() {
    let Some(gpu) = gpu(Caps::floor()) else { return };
    let mut executor = executor(&gpu, &model("qwen3", 1));
    gpu.device.destroy();
    for _ in 0..2 {
        let error = block_on(executor.forward(&[1], 0, Want::Argmax)).expect_err("gone");
        assert!(matches!(error, GpuError::Lost { .. }), "{error}");
    }
    let error = block_on(executor.forward(&[1], 0, Want::Argmax)).expect_err("gone");
    assert!(error.hint().is_some_and(|hint| hint.contains("--device cpu")));
}

/// Row 20.
#[test]
fn layers_share_pipelines() {
    let Some(gpu) = gpu(Caps::floor()) else { return };
    let one = executor(&gpu, &model("qwen3", 1)).pipelines();
    assert_eq!(executor(&gpu, &model("qwen3", 2)).pipelines(), one);
}

/// Row 21.
#[test]
fn nothing_is_loaded_before_the_weights_are_complete() {
    let Some(gpu) = gpu(Caps::floor()) else { return };
    let plan = model("qwen3", 1);
    let mut loader = block_on(GpuLoader::new(&gpu, &plan, CAPACITY)).expect("allocates");
    let missing = "model.norm.weight";
    for record in plan.weights.iter().flat_map(|weight| weight.storage.records()) {
        let bytes = content(record);
        let end = if record.name == missing { bytes.len() - 2 } else { bytes.len() };
        loader.write(record, 0, &bytes[..end / 4 * 4]).expect("record is taken");
    }
    let unknown = RecordSpec::new("lm_head.bias", Dtype::Float16, [4]);
    let error = loader.write(&unknown, 0, &[0; 8]).expect_err("unknown");
    assert!(error.to_string().contains("lm_head.bias"), "{error}");
    let error = block_on(loader.finish()).expect_err("incomplete");
    assert!(error.to_string().contains(missing), "{error}");
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
