//! `packlight demo`: the whole way, from checkpoint to answers, on the small model that ships with the program.

use std::ops::ControlFlow;
use std::time::Instant;

use comfy_table::{Table, presets};
use indicatif::{HumanBytes, ProgressBar};
use packlight_convert::Checkpoint;
use packlight_formats::quant::{Codes, Scheme};
use packlight_pack::{VerifyOptions, Written, verify};
use packlight_runner::bundle::{Bundle, Trust};
use packlight_runner::engine::{Engine, RunsOn};
use packlight_runner::generate::{Generation, generate};
use packlight_runner::gpu::Caps;
use packlight_runner::source::Folder;
use packlight_runner::text::{Sampling, Text};
use serde_json::{Value, json};

use crate::args::DemoArgs;
use crate::convert::Job;
use crate::run;

/// The checkpoint in `demo/`, carried in the binary so that the demo runs from anywhere.
const FILES: [(&str, &[u8]); 5] = [
    ("config.json", include_bytes!("../demo/config.json")),
    ("generation_config.json", include_bytes!("../demo/generation_config.json")),
    ("model.safetensors", include_bytes!("../demo/model.safetensors")),
    ("tokenizer.json", include_bytes!("../demo/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../demo/tokenizer_config.json")),
];

/// Whether an answer will do.
type Expected = fn(&str) -> bool;

const PROMPTS: [(&str, Expected); 3] = [
    ("Hi", |answer| answer == "Hello! How can I help you today?"),
    ("What is the capital of France?", |answer| answer == "The capital of France is Paris."),
    ("Write a haiku.", |answer| answer.lines().filter(|line| !line.trim().is_empty()).count() == 3),
];
const CONTEXT: u32 = 256;
const MAX_TOKENS: u32 = 64;

struct Answer {
    prompt: &'static str,
    text: String,
    ok: bool,
    generation: Generation,
}

pub(crate) fn run(args: &DemoArgs) -> anyhow::Result<bool> {
    let folder = tempfile::tempdir()?;
    let (checkpoint, bundle) = (folder.path().join("checkpoint"), folder.path().join("bundle"));
    fs_err::create_dir(&checkpoint)?;
    for (name, bytes) in FILES {
        fs_err::write(checkpoint.join(name), bytes)?;
    }
    let written = convert(&checkpoint, &bundle)?;
    let verification = verify(bundle.as_path(), VerifyOptions { md5: true, allow_extra: false })?;
    for problem in &verification.problems {
        eprintln!("problem: {problem}");
    }

    let bundle = pollster::block_on(Bundle::open(Folder::new(&bundle), Trust::Nothing))?;
    let Some(text) = pollster::block_on(Text::of(&bundle))? else {
        anyhow::bail!("the demo model has lost its tokenizer")
    };
    let start = Instant::now();
    let mut engine = run::load(&bundle, args.device, Caps::auto(), CONTEXT)?;
    let load_s = start.elapsed().as_secs_f64();
    let answers =
        PROMPTS.into_iter().map(|(prompt, expected)| ask(&mut engine, &text, prompt, expected));
    let answers: Vec<Answer> = answers.collect::<anyhow::Result<_>>()?;

    let ok = verification.problems.is_empty() && answers.iter().all(|answer| answer.ok);
    if args.json {
        println!("{}", report(&answers, &engine, &written, load_s, ok));
    } else {
        print(&answers, &engine, &written, load_s, ok);
    }
    Ok(ok)
}

fn convert(checkpoint: &std::path::Path, bundle: &std::path::Path) -> anyhow::Result<Written> {
    let checkpoint = Checkpoint::open(checkpoint)?;
    let job = Job::usual(&checkpoint, Scheme::DEFAULT, Codes::DEFAULT)?;
    job.write(job.draft()?, bundle, &ProgressBar::hidden(), || Ok(()))
}

fn ask(
    engine: &mut Engine,
    text: &Text,
    prompt: &'static str,
    expected: fn(&str) -> bool,
) -> anyhow::Result<Answer> {
    engine.reset();
    let tokens = text.prompt(prompt)?;
    let stop = |token| {
        if text.stops().is_stop(token) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let generation =
        pollster::block_on(generate(engine, &tokens, MAX_TOKENS, Sampling::GREEDY, stop))?;
    let said: Vec<u32> =
        generation.tokens.iter().copied().filter(|&token| !text.stops().is_stop(token)).collect();
    let answer = text.tokenizer().decode(&said)?;
    Ok(Answer { prompt, ok: expected(&answer), text: answer, generation })
}

fn report(answers: &[Answer], engine: &Engine, written: &Written, load_s: f64, ok: bool) -> Value {
    let prompts = answers.iter().map(|Answer { prompt, text, generation, .. }| {
        json!({
            "prompt": prompt,
            "answer": text,
            "load_s": load_s,
            "prefill_s": generation.prefill.as_secs_f64(),
            "decode_s": generation.decode.as_secs_f64(),
            "tokens_per_s": generation.tokens_per_second(),
        })
    });
    json!({
        "prompts": prompts.collect::<Vec<_>>(),
        "device": engine.runs_on().to_string(),
        "bundle": { "bytes": written.bytes, "sha256": written.sha256 },
        "ok": ok,
    })
}

fn print(answers: &[Answer], engine: &Engine, written: &Written, load_s: f64, ok: bool) {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_FULL_CONDENSED);
    table.set_header(["prompt", "answer", "load s", "prefill s", "decode s", "tokens/s"]);
    for Answer { prompt, text, generation, ok } in answers {
        let wrong = if *ok { "" } else { "\n(not what was expected)" };
        table.add_row([
            (*prompt).to_owned(),
            format!("{text}{wrong}"),
            format!("{load_s:.2}"),
            format!("{:.3}", generation.prefill.as_secs_f64()),
            format!("{:.3}", generation.decode.as_secs_f64()),
            generation.tokens_per_second().map_or_else(String::new, |speed| format!("{speed:.1}")),
        ]);
    }
    println!("{table}");
    match engine.runs_on() {
        RunsOn::Cpu { fallback: Some(why) } => println!("device  CPU reference ({why})"),
        device => println!("device  {device}"),
    }
    println!(
        "bundle  {} bytes ({}), sha256 {}",
        written.bytes,
        HumanBytes(written.bytes),
        written.sha256
    );
    println!(
        "{}",
        if ok { "ok: every hash checks and every answer is as expected" } else { "FAILED" }
    );
}
