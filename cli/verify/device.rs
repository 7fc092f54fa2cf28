//! Part 2: does the runner compute what the packed weights say?

use std::collections::BTreeMap;
use std::time::Instant;

use packlight_runner::bundle::Bundle;
use packlight_runner::engine::{Engine, EngineError, RunsOn};
use packlight_runner::gpu::{Adapter, Caps, GpuError};
use packlight_runner::plan::Plan;
use packlight_runner::verify::{
    Agreement, GREEDY_TOKENS, Greedy, Material, Statistics, StepError, Tolerance, Trace, agreement,
    trace,
};
use serde::Serialize;

use super::report::{Check, print_figures, table};
use super::words::Words;
use crate::args::{DeviceChoice, VerifyArgs};
use crate::place::Place;
use crate::{progress, run};

const PART: &str = "run";
/// Tokens of the call whose steps are compared.
const TRACED: usize = 48;

/// What was run, on what, and what came of it.
#[derive(Debug, Serialize)]
pub(crate) struct Run {
    device: String,
    adapter: Option<Adapter>,
    caps: Option<Caps>,
    /// How often each kernel stands in a pass.
    kernels: BTreeMap<&'static str, usize>,
    tolerance: Tolerance,
    text: String,
    times: Times,
    /// Device (`Q`) against reference (`base`).
    device_against_reference: Option<Statistics>,
    /// Mean negative log likelihoods of the reference and of the device.
    nll: Option<[f64; 2]>,
    /// One token at a time (`Q`) against many (`base`).
    single_against_many: Statistics,
    prompts: Vec<Prompt>,
    trace: Option<Trace>,
    #[serde(skip)]
    pub(crate) greedy: Vec<Greedy>,
}

#[expect(clippy::struct_field_names, reason = "names of figures end in their unit")]
#[derive(Debug, Serialize)]
struct Times {
    load_s: f64,
    load_bytes_per_s: f64,
    prefill_s: f64,
    prefill_tokens_per_s: f64,
    decode_s: f64,
    decode_tokens_per_s: f64,
    /// Of weights, each read once for every token.
    decode_bytes_per_s: f64,
}

#[derive(Debug, Serialize)]
struct Prompt {
    tokens: usize,
    answer: Option<String>,
    answer_tokens: Vec<u32>,
    prefill_s: f64,
    decode_s: f64,
    tokens_per_s: f64,
    /// As the reference judges them.
    equal: Option<usize>,
    ties: Option<usize>,
    first_wrong: Option<usize>,
    largest_gap: Option<f32>,
}

/// Runs part 2; only checks where there is nothing to run on.
pub(crate) fn check(
    args: &VerifyArgs,
    bundle: &Bundle<Place>,
    words: &Words,
) -> anyhow::Result<(Vec<Check>, Option<Run>)> {
    let plan = Plan::lower(bundle.model(), bundle.assignment());
    let limit = bundle.model().context;
    let length = Material::text_length(&plan, limit);
    let context = length.saturating_add(GREEDY_TOKENS).min(limit);
    let material = words.material(&plan, context);

    let start = Instant::now();
    let mut device = match load(args, bundle, context) {
        Ok(device) => device,
        Err(error) if is_no_adapter(&error) => {
            let found = format!(
                "{error}: nothing was run (hint: --device cpu compares the reference with itself)"
            );
            return Ok((vec![Check::new(PART, "adapter", false, found)], None));
        }
        Err(error) => return Err(error),
    };
    let load_s = start.elapsed().as_secs_f64();
    let mut reference = match device.runs_on() {
        RunsOn::Gpu(_) => Some(run::load(bundle, DeviceChoice::Cpu, Caps::auto(), context)?),
        RunsOn::Cpu { .. } => None,
    };
    let tolerance = device.caps().map_or(Tolerance::F32, |caps| Tolerance::of(&caps));
    let bar = progress::work(0, "running");
    let found = agreement(&mut device, reference.as_mut(), &material, tolerance, |done, of| {
        bar.set_length(of as u64);
        bar.set_position(done as u64);
    });
    let found = pollster::block_on(found)?;
    let trace = match &mut reference {
        Some(reference) if args.trace_steps => {
            pollster::block_on(trace(&mut device, reference, &material.long, TRACED))?
        }
        _ => None,
    };
    bar.finish_and_clear();
    let checks = judge(&found, &material, &plan, tolerance, trace.as_ref(), args.trace_steps);
    let times = times(&found.greedy, load_s, bundle, &plan);
    let run = Run {
        device: device.runs_on().to_string(),
        adapter: match device.runs_on() {
            RunsOn::Gpu(adapter) => Some(adapter.clone()),
            RunsOn::Cpu { .. } => None,
        },
        caps: device.caps(),
        kernels: device.gpu().map(packlight_runner::gpu::GpuExecutor::kernels).unwrap_or_default(),
        tolerance,
        text: words.about.clone(),
        times,
        nll: found.text.as_ref().map(Statistics::mean_nll),
        device_against_reference: found.text,
        single_against_many: found.single,
        prompts: found.greedy.iter().map(|greedy| prompt(greedy, words)).collect(),
        trace,
        greedy: found.greedy,
    };
    Ok((checks, Some(run)))
}

/// Where nothing else was asked for a GPU is needed: the reference says nothing about one.
fn load(args: &VerifyArgs, bundle: &Bundle<Place>, context: u32) -> anyhow::Result<Engine> {
    let device = match args.device {
        DeviceChoice::Auto | DeviceChoice::Gpu => DeviceChoice::Gpu,
        DeviceChoice::Cpu => DeviceChoice::Cpu,
    };
    run::load(bundle, device, args.caps.caps, context)
}

fn is_no_adapter(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(EngineError::Gpu(GpuError::NoAdapter)))
}

fn judge(
    found: &Agreement,
    material: &Material,
    plan: &Plan,
    tolerance: Tolerance,
    trace: Option<&Trace>,
    trace_wanted: bool,
) -> Vec<Check> {
    let mut checks = Vec::new();
    let close = |name, statistics: &Statistics| {
        let (kld, same) = (statistics.mean_kld(), statistics.same_top());
        let holds =
            statistics.is_finite() && kld <= tolerance.mean_kld && same >= tolerance.same_top;
        let found = format!(
            "mean KLD {kld:.2e} (at most {:.0e}), same top token {:.2} % (at least {:.1} %), {} positions",
            tolerance.mean_kld,
            100.0 * same,
            100.0 * tolerance.same_top,
            statistics.positions()
        );
        Check::new(PART, name, holds, found)
    };
    if let (Some(statistics), Some(difference)) = (&found.text, found.nll_difference()) {
        checks.push(close("device against reference", statistics));
        let [base, q] = statistics.mean_nll();
        let about = format!(
            "{q:.5} against {base:.5} over {} predictions (apart by {:.0e} at most)",
            statistics.predictions(),
            tolerance.nll
        );
        checks.push(Check::new(
            PART,
            "negative log likelihood",
            difference <= tolerance.nll,
            about,
        ));
    } else {
        let about = "not checked: --device cpu has nothing but the reference";
        checks.push(Check::note(PART, "device against reference", about));
    }
    checks.push(close("single tokens against many", &found.single));
    let wrong: Vec<String> = found.greedy.iter().filter_map(wrong_answer).collect();
    if found.text.is_some() {
        let ties: usize = found.greedy.iter().filter_map(|g| Some(g.judged?.ties)).sum();
        let about = format!(
            "{GREEDY_TOKENS} tokens after each of {} prompts equal the reference's, but for {ties} that are likely to \
             within {} nats",
            found.greedy.len(),
            tolerance.tie
        );
        checks.push(Check::of(PART, "greedy tokens", about, wrong));
    }
    match material.beyond_window(plan) {
        Some((window, true)) => {
            let about = format!("text and prompts reach beyond the longest window of {window}");
            checks.push(Check::new(PART, "sliding window", true, about));
        }
        Some((window, false)) => {
            let about = format!("not checked: no prompt is longer than the window of {window}");
            checks.push(Check::note(PART, "sliding window", about));
        }
        None => {}
    }
    match trace {
        Some(trace) => {
            let about = format!(
                "{} steps over {} tokens after {}, each within {} of its largest value",
                trace.steps.len(),
                trace.tokens,
                trace.past,
                tolerance.step
            );
            let wrong = trace.first_wrong(tolerance).map(wrong_step);
            checks.push(Check::of(PART, "every step", about, wrong.into_iter().collect()));
        }
        None if trace_wanted => {
            let about = "not checked: there is no GPU to compare with the reference";
            checks.push(Check::note(PART, "every step", about));
        }
        None => {}
    }
    checks
}

fn wrong_step(StepError { step, place, op, tensor, error, relative }: &StepError) -> String {
    format!(
        "step {step} is the first that differs: {place}: {op}: {tensor} is off by {error:.3e}, {relative:.2e} of its \
         largest value"
    )
}

fn wrong_answer(greedy: &Greedy) -> Option<String> {
    let judged = greedy.judged?;
    let first = judged.first_wrong?;
    Some(format!(
        "after {} prompt tokens, token {first} of the answer is {}, but the reference has one that is likelier by up to \
         {:.3} nats",
        greedy.prompt.len(),
        greedy.tokens[first],
        judged.largest_gap
    ))
}

fn prompt(greedy: &Greedy, words: &Words) -> Prompt {
    let decode_s = greedy.decode.as_secs_f64();
    Prompt {
        tokens: greedy.prompt.len(),
        answer: words.say(&greedy.tokens),
        answer_tokens: greedy.tokens.clone(),
        prefill_s: greedy.prefill.as_secs_f64(),
        decode_s,
        tokens_per_s: greedy.tokens.len().saturating_sub(1) as f64 / decode_s,
        equal: greedy.judged.map(|judged| judged.equal),
        ties: greedy.judged.map(|judged| judged.ties),
        first_wrong: greedy.judged.and_then(|judged| judged.first_wrong),
        largest_gap: greedy.judged.map(|judged| judged.largest_gap),
    }
}

fn times(greedy: &[Greedy], load_s: f64, bundle: &Bundle<Place>, plan: &Plan) -> Times {
    let prefill_s: f64 = greedy.iter().map(|greedy| greedy.prefill.as_secs_f64()).sum();
    let decode_s: f64 = greedy.iter().map(|greedy| greedy.decode.as_secs_f64()).sum();
    let prefilled: usize = greedy.iter().map(|greedy| greedy.prompt.len()).sum();
    let decoded: usize = greedy.iter().map(|greedy| greedy.tokens.len().saturating_sub(1)).sum();
    let decode_tokens_per_s = decoded as f64 / decode_s;
    Times {
        load_s,
        load_bytes_per_s: bundle.weight_bytes() as f64 / load_s,
        prefill_s,
        prefill_tokens_per_s: prefilled as f64 / prefill_s,
        decode_s,
        decode_tokens_per_s,
        decode_bytes_per_s: decode_tokens_per_s * plan.bytes_per_token() as f64,
    }
}

impl Run {
    pub(crate) fn print(&self) {
        println!("\ndevice     {}", self.device);
        println!("text       {}", self.text);
        let kernels: Vec<String> =
            self.kernels.iter().map(|(name, count)| format!("{name} x{count}")).collect();
        if !kernels.is_empty() {
            println!("kernels    {}", kernels.join(", "));
        }
        let Times { load_s, load_bytes_per_s, .. } = self.times;
        println!("load       {load_s:.2} s, {:.0} MB/s", load_bytes_per_s / 1e6);
        println!("prefill    {:.1} tokens/s", self.times.prefill_tokens_per_s);
        println!(
            "decode     {:.1} tokens/s, {:.0} MB/s of weights",
            self.times.decode_tokens_per_s,
            self.times.decode_bytes_per_s / 1e6
        );
        if let Some(statistics) = &self.device_against_reference {
            println!("\nthe device (Q) against the reference (base)");
            print_figures(statistics);
        }
        let mut table = table();
        table.set_header([
            "prompt",
            "answer",
            "prefill s",
            "decode s",
            "tokens/s",
            "equal",
            "ties",
        ]);
        let count = |count: Option<usize>| count.map_or("-".into(), |count| count.to_string());
        for prompt in &self.prompts {
            table.add_row([
                format!("{} tokens", prompt.tokens),
                prompt.answer.as_deref().map_or("-".into(), first_line),
                format!("{:.3}", prompt.prefill_s),
                format!("{:.3}", prompt.decode_s),
                format!("{:.1}", prompt.tokens_per_s),
                count(prompt.equal),
                count(prompt.ties),
            ]);
        }
        println!("\n{}", table.trim_fmt());
    }
}

/// The beginning of an answer.
fn first_line(answer: &str) -> String {
    answer.lines().next().unwrap_or_default().chars().take(48).collect()
}
