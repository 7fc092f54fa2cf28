//! Answers as the commands print them.

use std::io::Write as _;
use std::ops::ControlFlow;

use packlight_runner::answer;
pub(crate) use packlight_runner::answer::{Answer, End, Limit};
use packlight_runner::engine::Engine;
use packlight_runner::generate::Generation;
use packlight_runner::text::{Sampling, StopRules, Text};
use serde_json::{Value, json};

/// How answers are made and given.
pub(crate) struct Manner<'a> {
    /// What turns tokens into text; without it token ids are said.
    pub(crate) text: Option<&'a Text>,
    pub(crate) stops: &'a StopRules,
    pub(crate) sampling: Sampling,
    /// Whether the answer is printed while it comes.
    pub(crate) aloud: bool,
}

impl Manner<'_> {
    /// Answers a prompt. `go_on` is asked after each token.
    pub(crate) fn answer(
        &self,
        engine: &mut Engine,
        prompt: &[u32],
        limit: Limit,
        go_on: impl Fn() -> ControlFlow<()>,
    ) -> anyhow::Result<Answer> {
        let mut printed = Ok(());
        let hear = |piece: &str| {
            if self.aloud && printed.is_ok() {
                printed = say(piece);
            }
            if printed.is_ok() { go_on() } else { ControlFlow::Break(()) }
        };
        let manner = answer::Manner { text: self.text, stops: self.stops, sampling: self.sampling };
        let answer = pollster::block_on(manner.answer(engine, prompt, limit, hear))?;
        printed?;
        let is_empty = match &answer.text {
            Some(text) => text.is_empty(),
            None => answer.generation.tokens.is_empty(),
        };
        if self.aloud && !is_empty {
            println!();
        }
        Ok(answer)
    }
}

fn say(piece: &str) -> std::io::Result<()> {
    print!("{piece}");
    std::io::stdout().flush()
}

/// The answer for machines; `prompt` is what it answers.
pub(crate) fn report(answer: &Answer, prompt: &[u32], engine: &Engine) -> Value {
    let Generation { cached, tokens, prefill, decode } = &answer.generation;
    json!({
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "tokens": tokens,
        "text": answer.text,
        "finish": answer.end,
        "prefill_s": prefill.as_secs_f64(),
        "decode_s": decode.as_secs_f64(),
        "device": engine.runs_on().to_string(),
    })
}
