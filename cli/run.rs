//! `packlight run`: a prompt goes in, text comes out.

use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use anyhow::Context as _;
use packlight_runner::bundle::{Bundle, Trust};
use packlight_runner::engine::{Device, Engine, RunsOn};
use packlight_runner::executor::{Output, Want};
use packlight_runner::generate::{Generation, generate};
use packlight_runner::gpu::Caps;
use packlight_runner::source::Folder;
use packlight_runner::text::{Detokenizer, Sampling, Text};
use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize};
use serde_json::json;

use crate::args::{CapsChoice, DeviceChoice, PromptArgs, RunArgs};
use crate::progress;
use crate::report::Hinted;

/// Tokens generated where `-n` does not say.
const DEFAULT_TOKENS: u32 = 256;

pub(crate) fn run(args: &RunArgs) -> anyhow::Result<bool> {
    let trust = if args.no_verify { Trust::Everything } else { Trust::Nothing };
    let bundle = pollster::block_on(Bundle::open(Folder::new(&args.bundle), trust))
        .with_context(|| format!("`{}` cannot be run", args.bundle.display()))?;
    let text = match pollster::block_on(Text::of(&bundle)) {
        // Token ids need no tokenizer, so a broken one is no reason to stop.
        Err(error) if args.prompt.tokens.is_some() => {
            eprintln!("warning: {error}; tokens are not turned into text");
            None
        }
        text => text?,
    };
    let prompt = tokens(&args.prompt, text.as_ref(), bundle.model().vocab)?;
    let count = token_count(args, prompt.len(), bundle.model().context)?;
    let context = u32::try_from(prompt.len()).unwrap_or(u32::MAX).saturating_add(count);

    let start = Instant::now();
    let mut engine = load(&bundle, args.device, args.caps, context)?;
    let load_s = start.elapsed().as_secs_f64();
    if let RunsOn::Cpu { fallback: Some(why) } = engine.runs_on() {
        eprintln!("note: running on the CPU reference: {why}");
    }
    if let Some(path) = &args.logits {
        write_logits(path, &mut engine, &prompt, bundle.model().vocab)?;
    }
    let sampling = Sampling { temperature: args.temperature, top_p: args.top_p, seed: args.seed };
    // Token ids are for measuring: they run on past any end of the answer.
    let stops = text.as_ref().filter(|_| args.prompt.tokens.is_none()).map(Text::stops);
    let mut speaker = Speaker::new(text.as_ref(), !args.json);
    let mut failed = Ok(());
    let generation =
        pollster::block_on(generate(&mut engine, &prompt, count, sampling, |token| {
            if stops.is_some_and(|stops| stops.is_stop(token)) {
                return ControlFlow::Break(());
            }
            failed = speaker.say(token);
            if failed.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }))?;
    failed?;
    let spoken = speaker.finish()?;
    if args.json {
        let Generation { tokens, prefill, decode } = &generation;
        let report = json!({
            "prompt_tokens": prompt,
            "tokens": tokens,
            "text": spoken,
            "load_s": load_s,
            "prefill_s": prefill.as_secs_f64(),
            "decode_s": decode.as_secs_f64(),
            "device": engine.runs_on().to_string(),
        });
        println!("{report}");
    } else if count > 0 {
        summary(&engine, &prompt, &generation, load_s);
    }
    Ok(true)
}

/// Loads a bundle, with progress.
pub(crate) fn load(
    bundle: &Bundle<Folder>,
    device: DeviceChoice,
    caps: CapsChoice,
    context: u32,
) -> anyhow::Result<Engine> {
    let device = match device {
        DeviceChoice::Auto => Device::Auto,
        DeviceChoice::Gpu => Device::Gpu,
        DeviceChoice::Cpu => Device::Cpu,
    };
    let ceiling = match caps {
        CapsChoice::Auto => None,
        CapsChoice::None => Some(Caps::floor()),
    };
    let bar = progress::bytes(bundle.about().requires.weight_bytes, "loading");
    let engine =
        pollster::block_on(Engine::load(bundle, device, ceiling, context, |bytes| bar.inc(bytes)))?;
    bar.finish_and_clear();
    Ok(engine)
}

fn tokens(prompt: &PromptArgs, text: Option<&Text>, vocab: u32) -> anyhow::Result<Vec<u32>> {
    if let Some(tokens) = &prompt.tokens {
        if let Some(token) = tokens.iter().find(|&&token| token >= vocab) {
            let message = format!("token {token} is outside the vocabulary of {vocab}");
            return Err(Hinted::new(message, format!("ids run from 0 to {}", vocab - 1)).into());
        }
        return Ok(tokens.clone());
    }
    let no_tokenizer =
        || Hinted::new("the bundle has no tokenizer.json", "give token ids with --tokens 1,2,3");
    let text = text.ok_or_else(no_tokenizer)?;
    let tokens = match (&prompt.prompt, &prompt.raw) {
        (Some(message), _) => text.prompt(message)?,
        (None, raw) => text.raw(raw.as_deref().unwrap_or_default())?,
    };
    if tokens.is_empty() {
        return Err(Hinted::new("the prompt has no tokens", "give some text").into());
    }
    Ok(tokens)
}

/// How many tokens to generate: what was asked for, if it fits, else what fits.
fn token_count(args: &RunArgs, prompt: usize, context: u32) -> anyhow::Result<u32> {
    let room = u64::from(context).checked_sub(prompt as u64);
    let asked = args.count.map_or(0, u64::from);
    let Some(room) = room.filter(|&room| asked <= room) else {
        let message = format!(
            "{prompt} prompt tokens and {asked} more do not fit the model's context of {context}"
        );
        return Err(Hinted::new(message, "shorten the prompt or lower -n").into());
    };
    let default = if args.logits.is_some() { 0 } else { DEFAULT_TOKENS };
    Ok(args.count.unwrap_or(default.min(u32::try_from(room).unwrap_or(u32::MAX))))
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

/// Turns tokens into text and says it as it comes.
struct Speaker<'a> {
    detokenizer: Option<Detokenizer<'a>>,
    text: String,
    aloud: bool,
}

impl<'a> Speaker<'a> {
    fn new(text: Option<&'a Text>, aloud: bool) -> Self {
        let detokenizer = text.map(|text| Detokenizer::new(text.tokenizer()));
        Self { detokenizer, text: String::new(), aloud }
    }

    fn say(&mut self, token: u32) -> anyhow::Result<()> {
        let piece = match &mut self.detokenizer {
            Some(detokenizer) => detokenizer.push(token)?,
            None if self.aloud => {
                print!("{token} ");
                String::new()
            }
            None => String::new(),
        };
        self.put(&piece)
    }

    fn put(&mut self, piece: &str) -> anyhow::Result<()> {
        self.text += piece;
        if self.aloud {
            print!("{piece}");
            std::io::stdout().flush()?;
        }
        Ok(())
    }

    /// All that was said; `None` where there was no tokenizer to say it with.
    fn finish(mut self) -> anyhow::Result<Option<String>> {
        let Some(detokenizer) = self.detokenizer.take() else {
            self.end_line();
            return Ok(None);
        };
        let rest = detokenizer.finish()?;
        self.put(&rest)?;
        self.end_line();
        Ok(Some(self.text))
    }

    fn end_line(&self) {
        if self.aloud {
            println!();
        }
    }
}

fn summary(engine: &Engine, prompt: &[u32], generation: &Generation, load_s: f64) {
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
