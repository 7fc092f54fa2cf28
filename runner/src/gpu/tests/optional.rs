//! Kernels for those who ask for f16 or subgroups.

use super::models::model;
use super::*;
use crate::kernels::{KernelOp, Refusal, choose};

/// A device with f16, or `None` where the adapter has none.
#[expect(clippy::print_stderr, reason = "a skipped test must be seen")]
fn f16_gpu() -> Option<Gpu> {
    match block_on(Gpu::open(Some(Caps { f16: Feature::On(()), ..Caps::floor() }))) {
        Err(GpuError::NoF16 { adapter }) => {
            eprintln!("SKIPPED: `{adapter}` has no f16");
            None
        }
        Err(GpuError::NoAdapter) => gpu(Caps::floor()),
        opened => Some(opened.expect("opens")),
    }
}

#[test]
fn f16_is_close_to_f32() {
    let Some(gpu) = f16_gpu() else { return };
    for kind in ["qwen3", "mistral"] {
        agree_within(1e-2, kind, &gpu, &model(kind, 2), &[17, 1, 33]);
    }
    for order in [Order::Nk, Order::Kn] {
        for (rows, columns, layout) in [(1, 20, Q4), (130, 71, Q3), (66, 160, Grouped::mlc(8, 32))]
        {
            let mut bench = Bench::stored(Form { layout, order, dtype: Dtype::Float32 });
            let x = bench.input(columns);
            let weight = bench.matrix(rows, columns);
            let out = bench.slot(Rows::Tokens, rows);
            bench.step(Op::Matmul { x, weight, bias: None, out });
            let plan = bench.finish(out);
            agree_within(F16, &format!("{rows} x {columns} {order:?}"), &gpu, &plan, &[17, 48]);
        }
    }
}

/// Values beyond those of f16 in both directions, such as the residuals of Gemma, are as close as any others.
#[test]
fn f16_does_not_limit_the_range_of_values() {
    use crate::plan::Factor;
    let Some(gpu) = f16_gpu() else { return };
    for factor in [1e8, 1e-9, 1e-30] {
        let mut bench = Bench::new(Q4);
        let x = bench.input(160);
        bench.step(Op::Scale { x, by: Factor::Constant(factor) });
        let weight = bench.matrix(66, 160);
        let out = bench.slot(Rows::Tokens, 66);
        bench.step(Op::Matmul { x, weight, bias: None, out });
        agree_within(F16, &format!("x of {factor:e}"), &gpu, &bench.finish(out), &[17, 48]);
    }
}

/// Rows 1 and 2 of the behaviours: the same answers with subgroups. The kernels must not care how large those are, so
/// here they run even where the rule would not choose them.
#[test]
#[expect(clippy::print_stderr, reason = "a skipped test must be seen")]
fn subgroups_change_no_answer() {
    let wanted =
        Caps { invocations: 1024, subgroups: Feature::On(SubgroupSizes::ANY), ..Caps::floor() };
    let (Some(plain), Some(real)) = (gpu(Caps::floor()), gpu(wanted)) else { return };
    let Feature::On(SubgroupSizes { min, max }) = real.caps().subgroups else {
        eprintln!("SKIPPED: the adapter has no subgroups");
        return;
    };
    if !(min..=max).contains(&32) {
        let choice = choose(KernelOp::Matvec, &real.caps());
        assert_eq!(choice.refused[0].1, Refusal::SubgroupSizes { min, max });
    }
    let gpu = real.claiming(Feature::On(SubgroupSizes { min: 32, max: 32 }));
    let name = |op| choose(op, &Caps { invocations: 1024, ..gpu.caps() }).chosen.map(|k| k.name);
    assert_eq!(name(KernelOp::Matvec), Some("matvec subgroups"));
    for kind in ["qwen3", "mistral"] {
        let plan = model(kind, 2);
        agree(kind, &gpu, &plan, &[17, 1, 33, 3, 1]);
        let greedy = |gpu| {
            let mut executor = executor(gpu, &plan);
            let mut token = 7;
            let next = |past| {
                let output =
                    block_on(executor.forward(&[token], past, Want::Argmax)).expect("runs");
                let Output::Token(next) = output else { panic!("a token was asked for") };
                token = next;
                next
            };
            (0..30).map(next).collect::<Vec<_>>()
        };
        assert_eq!(greedy(&gpu), greedy(&plain), "{kind}");
    }
    for (rows, columns) in [(1, 20), (5, 100), (130, 70), (3, 2100)] {
        for order in [Order::Nk, Order::Kn] {
            let mut bench = Bench::stored(Form { layout: Q3, order, dtype: Dtype::Float16 });
            let x = bench.input(columns);
            let weight = bench.matrix(rows, columns);
            let other = bench.plain(rows, columns, Dtype::Bfloat16);
            let out = bench.slot(Rows::Tokens, rows);
            let more = bench.slot(Rows::Tokens, rows);
            bench.step(Op::Matmul { x, weight, bias: None, out });
            bench.step(Op::Matmul { x, weight: other, bias: None, out: more });
            bench.step(Op::Add { x: out, y: more, scale: None });
            agree(&format!("{rows} x {columns} {order:?}"), &gpu, &bench.finish(out), &[1, 3, 2]);
        }
    }
}
