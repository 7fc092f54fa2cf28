//! Broken kernels: each is caught by the comparison of a device with the reference, and the trace names its step.
//!
//! The model is small and made of noise, so that nothing is near enough to nothing to be passed over.

use pollster::block_on;

use super::*;
use crate::engine::Engine;
use crate::executor::Capacity;
use crate::gpu::tests::models::model;
use crate::gpu::tests::{gpu, load, loaded};
use crate::gpu::{Caps, Gpu, GpuLoader, Placement};
use crate::kernels::{self, Call, Kernel};
use crate::plan::Plan;
use crate::reference::Reference;

const CAPACITY: Capacity = Capacity { context: 320, chunk: 48, outputs: 48 };

/// A device whose calls were tampered with, and the reference.
fn engines(gpu: &Gpu, plan: &Plan, tamper: impl Fn(&mut Call)) -> (Engine, Engine) {
    let placement = Placement::new(plan, &gpu.caps()).expect("places");
    let mut calls = kernels::lower(plan, &placement, &gpu.caps()).expect("lowers");
    calls.iter_mut().for_each(tamper);
    let loader = GpuLoader::with_calls(gpu, plan, CAPACITY, placement, calls);
    let executor = loaded(block_on(loader).expect("allocates"), plan);
    let mut reference = Reference::new(plan.clone(), CAPACITY);
    load(&mut reference, plan);
    (Engine::of_gpu(executor, CAPACITY), Engine::of_reference(reference, CAPACITY))
}

fn material(plan: &Plan) -> Material {
    let vocab = plan.vocab();
    let tokens = noise(vocab, 1300, 0);
    let prompts = vec![noise(vocab, 3, 1), noise(vocab, 9, 2)];
    Material::new(plan, CAPACITY.context, &tokens, &[], prompts)
}

/// The words of another kernel in the place of some of this one's.
fn patch(call: &mut Call, kernel: &str, from: &str, to: &str) {
    if call.kernel.name == kernel {
        let source = call.kernel.source.concat();
        assert!(source.contains(from), "{kernel} has no `{from}`");
        let source: &'static str = Box::leak(source.replace(from, to).into_boxed_str());
        call.kernel =
            Box::leak(Box::new(Kernel { source: Box::leak(Box::new([source])), ..*call.kernel }));
    }
}

fn compare(gpu: &Gpu, plan: &Plan, tamper: impl Fn(&mut Call)) -> (Agreement, Trace) {
    let (mut device, mut reference) = engines(gpu, plan, tamper);
    let material = material(plan);
    let found = agreement(&mut device, Some(&mut reference), &material, Tolerance::F32, |_, _| ());
    let found = block_on(found).expect("runs");
    let trace = block_on(trace(&mut device, &mut reference, &material.long, 9)).expect("runs");
    (found, trace.expect("a GPU"))
}

#[test]
fn sound_kernels_agree() {
    let Some(gpu) = gpu(Caps::floor()) else { return };
    for kind in ["qwen3", "mistral"] {
        let plan = model(kind, 2);
        let (found, trace) = compare(&gpu, &plan, |_| ());
        let text = found.text.as_ref().expect("a reference");
        assert!(text.positions() >= 1024);
        assert!(text.mean_kld() <= 1e-5, "{kind}: {}", text.mean_kld());
        assert!(found.single.mean_kld() <= 1e-5, "{kind}: {}", found.single.mean_kld());
        assert_eq!(found.single.positions(), 128);
        assert_eq!(found.greedy.len(), 3);
        for greedy in &found.greedy {
            let judged = greedy.judged.expect("a reference");
            assert_eq!((judged.equal + judged.ties, judged.first_wrong), (64, None), "{kind}");
        }
        assert_eq!(trace.first_wrong(Tolerance::F32), None);
        assert_eq!((trace.steps.len(), trace.past), (plan.steps.len(), 311));
        assert!(trace.steps.iter().all(|step| step.relative < 1e-4), "{:?}", trace.steps);
    }
}

/// What a broken kernel does to each of the comparisons, and the step that is blamed.
fn caught(kind: &str, tamper: impl Fn(&mut Call)) -> Option<(Agreement, String)> {
    let gpu = gpu(Caps::floor())?;
    let plan = model(kind, 2);
    let (found, trace) = compare(&gpu, &plan, tamper);
    let text = found.text.as_ref().expect("a reference");
    assert!(text.mean_kld() > 1e-3, "{}", text.mean_kld());
    let wrong = trace.first_wrong(Tolerance::F32).expect("a step is wrong");
    assert!(wrong.relative > 1e-3);
    let blamed = format!("{}: {}", wrong.place, wrong.op);
    Some((found, blamed))
}

#[test]
fn a_forgotten_window_is_caught() {
    let forget = |call: &mut Call| {
        if let Some(i) = call.kernel.args.iter().position(|arg| *arg == "window") {
            call.args[i] = 0;
        }
        if let Some(spread) = &mut call.work.spread {
            spread.window = None;
        }
    };
    let Some((found, blamed)) = caught("mistral", forget) else { return };
    assert!(blamed.starts_with("layer 0 attention: attend"), "{blamed}");
    // It shows where a prompt is longer than the window of 20; the short ones get there while they go on.
    assert!(found.greedy.iter().all(|greedy| greedy.judged.expect("judged").first_wrong.is_some()));
}

#[test]
fn heads_that_read_the_wrong_keys_are_caught() {
    let from = "head / (args.heads / args.kv_heads)";
    let tamper = |call: &mut Call| patch(call, "attend tiles", from, "head % args.kv_heads");
    let Some((_, blamed)) = caught("qwen3", tamper) else { return };
    assert!(blamed.starts_with("layer 0 attention: attend"), "{blamed}");
}

/// Few tokens have a kernel of their own, which no trace of a long call shows: but one by one against many does.
#[test]
fn a_fault_of_single_tokens_is_caught() {
    for (from, to) in [
        ("let kv_head = head / heads_per_kv;", "let kv_head = head % args.kv_heads;"),
        ("let end = live.past + t + 1u;", "let end = max(live.past + t, 1u);"),
    ] {
        let Some(gpu) = gpu(Caps::floor()) else { return };
        let (found, _) =
            compare(&gpu, &model("qwen3", 2), |call| patch(call, "attend split", from, to));
        assert!(found.single.mean_kld() > 1e-3, "{to}: {}", found.single.mean_kld());
    }
}

#[test]
fn keys_turned_for_the_wrong_position_are_caught() {
    // Queries and keys are turned alike, so only what differs between them shows: here, only calls of one token.
    let from = "turns[(live.first + at.row) * pairs + i]";
    let to = "turns[select(at.row, at.row + 1u, live.tokens > 1u && args.offset > 0u) * pairs + i]";
    let Some((found, blamed)) = caught("qwen3", |call| patch(call, "rope", from, to)) else {
        return;
    };
    assert!(blamed.starts_with("layer 0 attention: rope"), "{blamed}");
    assert!(found.single.mean_kld() > 1e-3, "one by one against many: {}", found.single.mean_kld());
}

#[test]
fn an_off_by_one_in_what_is_seen_is_caught() {
    let from = "let own_end = live.past + first_query + eighth_row + 1u;";
    let to = "let own_end = max(live.past + first_query + eighth_row, 1u);";
    let Some((_, blamed)) = caught("mistral", |call| patch(call, "attend tiles", from, to)) else {
        return;
    };
    assert!(blamed.starts_with("layer 0 attention: attend"), "{blamed}");
}
