//! One answer of a model: generated, turned into text and said as it comes.

use std::io::Write as _;
use std::ops::ControlFlow;

use packlight_runner::engine::Engine;
use packlight_runner::generate::{Generation, generate};
use packlight_runner::text::{Detokenizer, Sampling, StopFilter, StopRules, Text};
use serde_json::{Value, json};

/// How answers are made.
pub(crate) struct Manner<'a> {
    /// What turns tokens into text; without it token ids are said.
    pub(crate) text: Option<&'a Text>,
    pub(crate) stops: &'a StopRules,
    pub(crate) sampling: Sampling,
    /// Whether the answer is printed while it comes.
    pub(crate) aloud: bool,
}

/// The most tokens of an answer, and what it means to reach them.
#[derive(Clone, Copy)]
pub(crate) struct Limit {
    pub(crate) tokens: u32,
    pub(crate) end: End,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum End {
    /// A stop token or a stop text came.
    Stop,
    /// As many tokens were generated as were to be.
    Length,
    /// There was no room for more.
    Context,
    /// Ctrl-C.
    Interrupted,
}

/// What was answered.
pub(crate) struct Answer {
    pub(crate) generation: Generation,
    /// `None` where there was no tokenizer to say it with.
    pub(crate) text: Option<String>,
    pub(crate) end: End,
}

impl Limit {
    /// What was asked for, or by default so many tokens, as far as there is room.
    pub(crate) fn new(asked: Option<u32>, default: u32, room: u32) -> Self {
        let wanted = asked.unwrap_or(default);
        let end = if wanted < room { End::Length } else { End::Context };
        Self { tokens: wanted.min(room), end }
    }
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
        let mut speaker = Speaker::new(self);
        let (mut end, mut failed) = (limit.end, Ok(()));
        let on_token = |token| {
            if self.stops.is_stop(token) {
                end = End::Stop;
                return ControlFlow::Break(());
            }
            failed = speaker.say(token);
            if failed.is_err() {
                return ControlFlow::Break(());
            }
            if speaker.stopped() {
                end = End::Stop;
                return ControlFlow::Break(());
            }
            if go_on().is_break() {
                end = End::Interrupted;
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        };
        let generation =
            pollster::block_on(generate(engine, prompt, limit.tokens, self.sampling, on_token))?;
        failed?;
        Ok(Answer { generation, text: speaker.finish()?, end })
    }
}

impl Answer {
    /// No answer, because Ctrl-C came before its first token; so many tokens of the prompt were read already.
    pub(crate) fn interrupted(cached: usize) -> Self {
        let generation = Generation { cached, ..Generation::default() };
        Self { generation, text: Some(String::new()), end: End::Interrupted }
    }

    /// The answer for machines; `prompt` is what it answers.
    pub(crate) fn report(&self, prompt: &[u32], engine: &Engine) -> Value {
        let Generation { cached, tokens, prefill, decode } = &self.generation;
        json!({
            "prompt_tokens": prompt,
            "cached_tokens": cached,
            "tokens": tokens,
            "text": self.text,
            "finish": self.end,
            "prefill_s": prefill.as_secs_f64(),
            "decode_s": decode.as_secs_f64(),
            "device": engine.runs_on().to_string(),
        })
    }
}

/// Turns tokens into text and says it as it comes.
struct Speaker<'a> {
    detokenizer: Option<Detokenizer<'a>>,
    filter: StopFilter<'a>,
    voice: Voice,
}

struct Voice {
    said: String,
    aloud: bool,
}

impl Voice {
    fn say(&mut self, piece: &str) -> std::io::Result<()> {
        self.said += piece;
        if self.aloud {
            print!("{piece}");
            std::io::stdout().flush()?;
        }
        Ok(())
    }
}

impl<'a> Speaker<'a> {
    fn new(manner: &Manner<'a>) -> Self {
        Self {
            detokenizer: manner.text.map(|text| Detokenizer::new(text.tokenizer())),
            filter: StopFilter::new(manner.stops),
            voice: Voice { said: String::new(), aloud: manner.aloud },
        }
    }

    fn say(&mut self, token: u32) -> anyhow::Result<()> {
        let piece = match &mut self.detokenizer {
            Some(detokenizer) => self.filter.push(&detokenizer.push(token)?),
            None => format!("{token} "),
        };
        Ok(self.voice.say(&piece)?)
    }

    /// Whether a stop text has come.
    fn stopped(&self) -> bool {
        self.filter.stopped()
    }

    /// All that was said; `None` where there was no tokenizer to say it with.
    fn finish(self) -> anyhow::Result<Option<String>> {
        let Self { detokenizer, mut filter, mut voice } = self;
        let is_text = detokenizer.is_some();
        if let Some(detokenizer) = detokenizer {
            let rest = filter.push(&detokenizer.finish()?);
            voice.say(&(rest + &filter.finish()))?;
        }
        if voice.aloud && !voice.said.is_empty() {
            println!();
        }
        Ok(is_text.then_some(voice.said))
    }
}
