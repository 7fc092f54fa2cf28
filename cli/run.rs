//! `packlight run`: a prompt goes in, text comes out.

use std::io::{Read as _, Write as _};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Instant, SystemTime};

use anyhow::Context as _;
use packlight_formats::chat_config::{Message, Role};
use packlight_runner::bundle::{Bundle, Trust};
use packlight_runner::engine::{Device, Engine, RunsOn};
use packlight_runner::executor::{Output, Want};
use packlight_runner::gpu::Caps;
use packlight_runner::kernels::choices;
use packlight_runner::source::Source;
use packlight_runner::text::{Date, Sampling, StopRules, Text};
use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize};

use crate::answer::{self, Answer, End, Limit, Manner};
use crate::args::{DeviceChoice, RunArgs};
use crate::place::Place;
use crate::report::Hinted;
use crate::{chat, progress};

/// Tokens generated where `-n` does not say.
const DEFAULT_TOKENS: u32 = 256;

pub(crate) fn run(args: &RunArgs) -> anyhow::Result<bool> {
    let sampling = sampling(args)?;
    let trust = if args.no_verify { Trust::Everything } else { Trust::Nothing };
    let place = Place::open(&args.bundle, &args.cache)?;
    let bundle = pollster::block_on(Bundle::open(place, trust))
        .with_context(|| format!("`{}` cannot be run", args.bundle.display()))?;
    for note in bundle.notes() {
        eprintln!("note: {note}");
    }
    let (own, wanted) = (bundle.model().context, args.context.unwrap_or(1));
    if wanted > own {
        let message = format!("--context {wanted} is more than the model's {own}");
        return Err(Hinted::new(message, format!("positions run from 1 to {own}")).into());
    }
    let text = match pollster::block_on(Text::of(&bundle)) {
        // Token ids need no tokenizer, so a broken one is no reason to stop.
        Err(error) if args.prompt.tokens.is_some() => {
            eprintln!("warning: {error}; tokens are not turned into text");
            None
        }
        text => text?.map(|text| text.with_date(today())),
    };
    // Token ids are for measuring: they run on past any end of the answer.
    let mut stops = match &text {
        Some(text) if args.prompt.tokens.is_none() => text.stops().clone(),
        _ => StopRules::default(),
    };
    stops.texts.extend(args.stop.clone());
    let manner = Manner { text: text.as_ref(), stops: &stops, sampling, aloud: !args.json };
    if args.prompt.chat { chat::run(args, &bundle, &manner) } else { once(args, &bundle, &manner) }
}

/// Answers one prompt.
fn once<S: Source>(
    args: &RunArgs,
    bundle: &Bundle<S>,
    manner: &Manner<'_>,
) -> anyhow::Result<bool> {
    let prompt = tokens(args, manner.text, bundle.model().vocab)?;
    let limit = limit(args, prompt.len(), args.context.unwrap_or(bundle.model().context))?;
    let context = u32::try_from(prompt.len()).unwrap_or(u32::MAX).saturating_add(limit.tokens);
    let (mut engine, load_s) = load_for(args, bundle, context)?;
    if let Some(path) = &args.logits {
        write_logits(path, &mut engine, &prompt, bundle.model().vocab)?;
    }
    let answer = manner.answer(&mut engine, &prompt, limit, || ControlFlow::Continue(()))?;
    if args.json {
        let mut report = answer::report(&answer, &prompt, &engine);
        report["load_s"] = load_s.into();
        println!("{report}");
    } else if limit.tokens > 0 {
        match answer.end {
            End::Length if args.count.is_none() => {
                eprintln!("note: ended after {} tokens; -n allows for more", limit.tokens);
            }
            End::Context => eprintln!("note: ended because the context is full"),
            _ => {}
        }
        summary(&engine, &prompt, &answer, load_s);
    }
    Ok(true)
}

/// Sampling that has a meaning, noting what is asked for in vain.
fn sampling(args: &RunArgs) -> anyhow::Result<Sampling> {
    let sampling = args.sampling.settings()?;
    let Sampling { temperature, top_k, top_p, min_p, .. } = sampling;
    if temperature == 0.0 && (top_k > 0 || top_p < 1.0 || min_p > 0.0) {
        eprintln!(
            "note: top-k, top-p and min-p have no effect, since --temperature 0 takes the likeliest token"
        );
    }
    Ok(sampling)
}

/// The day, by UTC.
fn today() -> Date {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Date::from_unix_seconds(now.map_or(0, |since| since.as_secs()))
}

/// Loads a bundle as a command says, and how many seconds that took.
pub(crate) fn load_for<S: Source>(
    args: &RunArgs,
    bundle: &Bundle<S>,
    context: u32,
) -> anyhow::Result<(Engine, f64)> {
    let start = Instant::now();
    let engine = load(bundle, args.device, args.caps.caps, context)?;
    if let RunsOn::Cpu { fallback: Some(why) } = engine.runs_on() {
        eprintln!("note: running on the CPU reference: {why}");
    }
    Ok((engine, start.elapsed().as_secs_f64()))
}

/// Loads a bundle, with progress.
pub(crate) fn load<S: Source>(
    bundle: &Bundle<S>,
    device: DeviceChoice,
    caps: Caps,
    context: u32,
) -> anyhow::Result<Engine> {
    let device = match device {
        DeviceChoice::Auto => Device::Auto,
        DeviceChoice::Gpu => Device::Gpu,
        DeviceChoice::Cpu => Device::Cpu,
    };
    let bar = progress::bytes(bundle.weight_bytes(), "loading");
    let engine = Engine::load(bundle, device, Some(caps), context, |bytes| bar.inc(bytes));
    let engine = pollster::block_on(engine)?;
    bar.finish_and_clear();
    for choice in engine.caps().iter().flat_map(choices) {
        for (kernel, why) in choice.refused.iter().filter(|(_, why)| !why.is_no_news()) {
            eprintln!("note: kernel `{}` is not used: {why}", kernel.name);
        }
    }
    Ok(engine)
}

fn tokens(args: &RunArgs, text: Option<&Text>, vocab: u32) -> anyhow::Result<Vec<u32>> {
    if let Some(tokens) = &args.prompt.tokens {
        if let Some(token) = tokens.iter().find(|&&token| token >= vocab) {
            let message = format!("token {token} is outside the vocabulary of {vocab}");
            return Err(Hinted::new(message, format!("ids run from 0 to {}", vocab - 1)).into());
        }
        return Ok(tokens.clone());
    }
    let text = text.ok_or_else(no_tokenizer)?;
    let empty = || Hinted::new("the prompt is empty", "give some text, or - to read it from stdin");
    if let Some(message) = &args.prompt.prompt {
        let message = given(message)?;
        if message.trim().is_empty() {
            return Err(empty().into());
        }
        let messages: Vec<Message> =
            system(args).into_iter().chain([Message::new(Role::User, message)]).collect();
        return Ok(text.conversation(&messages)?);
    }
    // A model whose texts begin with a token of their own can start from nothing.
    let tokens = text.raw(&given(args.prompt.raw.as_deref().unwrap_or_default())?)?;
    if tokens.is_empty() { Err(empty().into()) } else { Ok(tokens) }
}

/// The system message.
pub(crate) fn system(args: &RunArgs) -> Option<Message> {
    args.system.as_ref().map(|text| Message::new(Role::System, text))
}

pub(crate) fn no_tokenizer() -> Hinted {
    Hinted::new("the bundle has no tokenizer.json", "give token ids with --tokens 1,2,3")
}

/// A text of the command line; `-` stands for standard input, short of the line's end that shells and editors add.
fn given(text: &str) -> anyhow::Result<String> {
    if text != "-" {
        return Ok(text.to_owned());
    }
    let mut input = String::new();
    std::io::stdin().read_to_string(&mut input).context("standard input cannot be read as text")?;
    let line = input.strip_suffix('\n').map(|text| text.strip_suffix('\r').unwrap_or(text));
    Ok(line.map_or(input.clone(), str::to_owned))
}

/// How many tokens to generate: what was asked for, if it fits, else what fits.
fn limit(args: &RunArgs, prompt: usize, context: u32) -> anyhow::Result<Limit> {
    let room = u64::from(context).checked_sub(prompt as u64);
    let asked = args.count.map_or(0, u64::from);
    let Some(room) = room.filter(|&room| asked <= room) else {
        let message = format!(
            "{prompt} prompt tokens and {asked} more do not fit {} of {context}",
            if args.context.is_some() { "the context" } else { "the model's context" }
        );
        return Err(Hinted::new(message, "shorten the prompt or lower -n").into());
    };
    let default = if args.logits.is_some() { 0 } else { DEFAULT_TOKENS };
    Ok(Limit::new(args.count, default, u32::try_from(room).unwrap_or(u32::MAX)))
}

/// `logits`, `[tokens, vocab]` f32, in a safetensors file.
fn write_logits(
    path: &Path,
    engine: &mut Engine,
    prompt: &[u32],
    vocab: u32,
) -> anyhow::Result<()> {
    let output = pollster::block_on(engine.feed(prompt, Want::AllLogits))?;
    engine.reset();
    let Output::Logits(logits) = output else { anyhow::bail!("the device returned no logits") };
    let bytes: Vec<u8> = logits.iter().flat_map(|logit| logit.to_le_bytes()).collect();
    let view = TensorView::new(Dtype::F32, vec![prompt.len(), vocab as usize], &bytes)?;
    let file = serialize([("logits", view)], None)?;
    let folder =
        path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut temporary = tempfile::NamedTempFile::new_in(folder)
        .with_context(|| format!("cannot write `{}`", path.display()))?;
    temporary.write_all(&file)?;
    temporary.persist(path)?;
    Ok(())
}

fn summary(engine: &Engine, prompt: &[u32], Answer { generation, .. }: &Answer, load_s: f64) {
    let speed = generation
        .tokens_per_second()
        .map_or_else(String::new, |speed| format!(" ({speed:.1} tokens/s)"));
    eprintln!(
        "{}: load {load_s:.2} s, prefill {} tokens {:.2} s, decode {} tokens {:.2} s{speed}",
        engine.runs_on(),
        prompt.len(),
        generation.prefill.as_secs_f64(),
        generation.tokens.len(),
        generation.decode.as_secs_f64(),
    );
}
