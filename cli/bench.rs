//! `packlight bench`: how fast a bundle loads and runs on this machine, and how fast one is made.

mod convert;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context as _;
use packlight_runner::bundle::{Bundle, Trust};
use packlight_runner::engine::Engine;
use packlight_runner::executor::{Output, Want};
use packlight_runner::gpu::{Gpu, Timed};
use packlight_runner::plan::Plan;
use serde::Serialize;

use crate::args::{CacheFolder, CapsArgs, DeviceChoice};
use crate::place::Place;
use crate::report::Hinted;
use crate::run;

/// Measure how fast a bundle loads and runs: prefill, decoding, and the device's time in each kernel.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    other: Option<Other>,
    /// Bundle folder, or its URL: https://host/folder/ or hf://owner/name[@revision].
    #[arg(required = true)]
    bundle: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) cache: CacheFolder,
    /// Where to run.
    #[arg(long, default_value = "auto")]
    pub(crate) device: DeviceChoice,
    #[command(flatten)]
    pub(crate) caps: CapsArgs,
    /// Lengths of prompts to read.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "16,128,512", value_parser = at_least_one)]
    pub(crate) prefill: Vec<usize>,
    /// Lengths of prompts to go on from.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "16,512", value_parser = at_least_one)]
    pub(crate) decode: Vec<usize>,
    /// Tokens to make after each of them.
    #[arg(short = 'n', default_value_t = 128, value_name = "N", value_parser = at_least_one)]
    pub(crate) tokens: usize,
    /// Measurements of which the median counts.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = at_least_one)]
    pub(crate) repeat: usize,
    /// Print the result as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What is measured other than a bundle.
#[derive(Debug, clap::Subcommand)]
enum Other {
    Convert(convert::ConvertArgs),
}

/// Everything that was measured. Times are medians, in seconds.
#[derive(Serialize)]
struct Report {
    adapter: String,
    caps: packlight_runner::gpu::Caps,
    /// To open the device, once before the load.
    device_s: f64,
    load_s: f64,
    /// From the start of the load to the first token, pipelines included.
    first_token_s: f64,
    /// Bytes of the matrices that every token is multiplied by.
    matrix_bytes: u64,
    /// Bytes that the device reads and writes a second where it only copies.
    copy_bytes_per_s: f64,
    prefill: Vec<Prefill>,
    decode: Vec<Decode>,
    /// The dispatches of the longest prefill and of a token after it, summed by kernel; nothing without timestamps.
    calls: Vec<Call>,
}

#[derive(Serialize)]
struct Prefill {
    tokens: usize,
    s: f64,
    tokens_per_s: f64,
}

#[derive(Serialize)]
struct Decode {
    context: usize,
    tokens: usize,
    s: f64,
    tokens_per_s: f64,
    /// Of the matrices.
    bytes_per_s: f64,
}

#[derive(Serialize)]
struct Call {
    tokens: usize,
    context: usize,
    kernels: Vec<Kernel>,
}

#[derive(Serialize)]
struct Kernel {
    name: &'static str,
    dispatches: usize,
    s: f64,
}

pub(crate) fn run(args: &BenchArgs) -> anyhow::Result<bool> {
    if let Some(Other::Convert(args)) = &args.other {
        return convert::run(args);
    }
    let path = args.bundle.as_deref().context("no bundle was given")?;
    let place = Place::open(path, &args.cache)?;
    let bundle = pollster::block_on(Bundle::open(place, Trust::Nothing))
        .with_context(|| format!("`{}` cannot be run", path.display()))?;
    let longest = |lengths: &[usize]| lengths.iter().copied().max().unwrap_or(0);
    // After the longest text some tokens are made.
    let texts = longest(&args.prefill).max(longest(&args.decode));
    let context = texts.saturating_add(args.tokens).saturating_add(2);
    let own = bundle.model().context;
    let Some(context) = u32::try_from(context).ok().filter(|&context| context <= own) else {
        let message = format!("{context} positions are more than the model's {own}");
        return Err(Hinted::new(message, "give shorter lengths with --prefill and --decode").into());
    };
    let vocab = bundle.model().vocab;
    let text: Vec<u32> = (0..context).map(|i| i.wrapping_mul(7919) % vocab).collect();

    let start = Instant::now();
    // Without an adapter the load says so, or does without.
    let _ = pollster::block_on(Gpu::open(Some(args.caps.caps)));
    let device_s = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let mut engine = run::load(&bundle, args.device, args.caps.caps, context)?;
    let load_s = start.elapsed().as_secs_f64();
    pollster::block_on(engine.feed(&text[..1], Want::Argmax))?;
    let first_token_s = start.elapsed().as_secs_f64();

    // A device that is nearly full has no room for it.
    let copy = engine.gpu().and_then(|gpu| pollster::block_on(gpu.gpu().copy_speed()).ok());
    let matrix_bytes = Plan::lower(bundle.model(), bundle.assignment()).bytes_per_token();
    let mut report = Report {
        adapter: engine.runs_on().to_string(),
        caps: engine.caps().unwrap_or(args.caps.caps),
        device_s,
        load_s,
        first_token_s,
        matrix_bytes,
        copy_bytes_per_s: copy.unwrap_or(0.0),
        prefill: Vec::new(),
        decode: Vec::new(),
        calls: Vec::new(),
    };
    for &tokens in &args.prefill {
        let s = median(args.repeat, || prefill(&mut engine, &text[..tokens]))?;
        report.prefill.push(Prefill { tokens, s, tokens_per_s: tokens as f64 / s });
    }
    for &context in &args.decode {
        let s = median(args.repeat, || decode(&mut engine, &text[..context], args.tokens))?;
        let tokens_per_s = args.tokens as f64 / s;
        let bytes_per_s = tokens_per_s * matrix_bytes as f64;
        let tokens = args.tokens;
        report.decode.push(Decode { context, tokens, s, tokens_per_s, bytes_per_s });
    }
    if let Some(&tokens) = args.prefill.iter().max() {
        engine.reset();
        let tokens = tokens.min(engine.chunk() as usize);
        for (context, call) in [(0, &text[..tokens]), (tokens, &text[tokens..=tokens])] {
            if let Some(timed) = pollster::block_on(engine.profile(call))? {
                let tokens = call.len();
                report.calls.push(Call { tokens, context, kernels: by_kernel(&timed) });
            }
        }
    }
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print!("{}", text_of(&report));
    }
    Ok(true)
}

/// The median of some measurements, after one that does not count.
fn median(repeat: usize, mut measure: impl FnMut() -> anyhow::Result<f64>) -> anyhow::Result<f64> {
    measure()?;
    let mut times = (0..repeat).map(|_| measure()).collect::<Result<Vec<_>, _>>()?;
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Seconds from a prompt to its first token.
fn prefill(engine: &mut Engine, prompt: &[u32]) -> anyhow::Result<f64> {
    engine.reset();
    let start = Instant::now();
    pollster::block_on(engine.feed(prompt, Want::Argmax))?;
    Ok(start.elapsed().as_secs_f64())
}

/// Seconds of so many tokens after a prompt's first.
fn decode(engine: &mut Engine, prompt: &[u32], tokens: usize) -> anyhow::Result<f64> {
    engine.reset();
    let Output::Token(mut last) = pollster::block_on(engine.feed(prompt, Want::Argmax))? else {
        anyhow::bail!("the device returned no token")
    };
    let start = Instant::now();
    let mut made = 0;
    while made < tokens {
        let left = u32::try_from(tokens - made).unwrap_or(u32::MAX);
        let more = pollster::block_on(engine.go_on(last, left))?;
        last = *more.last().context("the device returned no token")?;
        made += more.len();
    }
    Ok(start.elapsed().as_secs_f64())
}

/// The slowest first.
fn by_kernel(timed: &[Timed]) -> Vec<Kernel> {
    let mut sums: BTreeMap<&'static str, (usize, f64)> = BTreeMap::new();
    for Timed { kernel, time, .. } in timed {
        let sum = sums.entry(kernel).or_default();
        *sum = (sum.0 + 1, sum.1 + time.as_secs_f64());
    }
    let kernel = |(name, (dispatches, s))| Kernel { name, dispatches, s };
    let mut kernels: Vec<_> = sums.into_iter().map(kernel).collect();
    kernels.sort_by(|a, b| b.s.total_cmp(&a.s));
    kernels
}

fn text_of(report: &Report) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{}", report.adapter);
    let _ = writeln!(
        out,
        "load      {:.3} s, {:.3} s to the first token; {:.3} s to open the device alone",
        report.load_s, report.first_token_s, report.device_s
    );
    for Prefill { tokens, s, tokens_per_s } in &report.prefill {
        let _ = writeln!(
            out,
            "prefill   {tokens:>6} tokens {:>9.2} ms {tokens_per_s:>10.1} tokens/s",
            s * 1e3
        );
    }
    for Decode { context, tokens, s, tokens_per_s, bytes_per_s } in &report.decode {
        let _ = writeln!(
            out,
            "decode    after {context:>4} {:>9.3} ms {tokens_per_s:>10.1} tokens/s {:>8.1} GB/s",
            s * 1e3 / *tokens as f64,
            bytes_per_s / 1e9
        );
    }
    if report.copy_bytes_per_s > 0.0 {
        let _ = writeln!(out, "copy {:>43.1} GB/s", report.copy_bytes_per_s / 1e9);
    }
    for Call { tokens, context, kernels } in &report.calls {
        let total: f64 = kernels.iter().map(|kernel| kernel.s).sum();
        let count: usize = kernels.iter().map(|kernel| kernel.dispatches).sum();
        let _ = writeln!(
            out,
            "{tokens} tokens after {context}: {count} dispatches, each timed alone {:.1} us",
            total * 1e6
        );
        for Kernel { name, dispatches, s } in kernels {
            let _ = writeln!(
                out,
                "    {name:<24} {dispatches:>5} {:>12.1} us {:>10.2} us each",
                s * 1e6,
                s * 1e6 / *dispatches as f64
            );
        }
    }
    out
}

/// At least one.
fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("it must be at least 1".into()),
        Ok(count) => Ok(count),
        Err(error) => Err(format!("{error}")),
    }
}
