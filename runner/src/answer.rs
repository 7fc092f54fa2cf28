//! One answer of a model: generated, turned into text and handed on as it comes.

use std::ops::ControlFlow;
use std::time::Duration;

use web_time::Instant;

use crate::engine::Engine;
use crate::generate::{GenerateError, Generation, generate, prefill};
use crate::text::tokenizer::TokenizerError;
use crate::text::{Detokenizer, Sampling, StopFilter, StopRules, Text};

/// How answers are made.
#[derive(Clone, Copy)]
pub struct Manner<'a> {
    /// What turns tokens into text; without it token ids are said.
    pub text: Option<&'a Text>,
    pub stops: &'a StopRules,
    pub sampling: Sampling,
}

/// The most tokens of an answer, and what it means to reach them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    pub tokens: u32,
    pub end: End,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// A stop token or a stop text came.
    Stop,
    /// As many tokens were generated as were to be.
    Length,
    /// There was no room for more.
    Context,
    /// Whoever listened had heard enough.
    Interrupted,
}

/// What was answered.
#[derive(Clone, Debug)]
pub struct Answer {
    pub generation: Generation,
    /// `None` where there was no tokenizer to say it with.
    pub text: Option<String>,
    pub end: End,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    #[error(transparent)]
    Generate(#[from] GenerateError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

impl Limit {
    /// What was asked for, or by default so many tokens, as far as there is room.
    pub fn new(asked: Option<u32>, default: u32, room: u32) -> Self {
        let wanted = asked.unwrap_or(default);
        let end = if wanted < room { End::Length } else { End::Context };
        Self { tokens: wanted.min(room), end }
    }

    /// The same after a prompt of so many tokens in a context of so many; `None` where that leaves no room.
    pub fn after(prompt: usize, context: u32, asked: Option<u32>) -> Option<Self> {
        let room = context.checked_sub(u32::try_from(prompt).ok()?)?;
        (room > 0).then(|| Self::new(asked, u32::MAX, room))
    }
}

impl Answer {
    /// No answer, because nobody waited for its first token.
    fn interrupted(cached: usize, prefill: Duration) -> Self {
        let generation = Generation { cached, prefill, ..Generation::default() };
        Self { generation, text: Some(String::new()), end: End::Interrupted }
    }
}

impl Manner<'_> {
    /// Answers a prompt. `hear` gets the text that each token makes complete, which may be none, and says whether to go
    /// on; while the prompt is read it is asked between calls to the device.
    pub async fn answer(
        &self,
        engine: &mut Engine,
        prompt: &[u32],
        limit: Limit,
        mut hear: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer, AnswerError> {
        let start = Instant::now();
        let cached = match prefill(engine, prompt, || hear(""))
            .await
            .map_err(GenerateError::from)?
        {
            ControlFlow::Break(cached) => return Ok(Answer::interrupted(cached, start.elapsed())),
            ControlFlow::Continue(cached) => cached,
        };
        let prefilled = start.elapsed();
        let mut speaker = Speaker::new(self);
        let (mut end, mut failed) = (limit.end, Ok(()));
        let on_token = |token| {
            if self.stops.is_stop(token) {
                end = End::Stop;
                return ControlFlow::Break(());
            }
            let heard = match speaker.say(token) {
                Ok(piece) => hear(piece),
                Err(error) => {
                    failed = Err(error);
                    ControlFlow::Break(())
                }
            };
            if speaker.filter.stopped() {
                end = End::Stop;
                return ControlFlow::Break(());
            }
            if heard.is_break() {
                end = End::Interrupted;
            }
            heard
        };
        let mut generation =
            generate(engine, prompt, limit.tokens, self.sampling, on_token).await?;
        failed?;
        generation.cached = cached;
        generation.prefill += prefilled;
        let is_text = self.text.is_some();
        let said = speaker.finish(hear)?;
        Ok(Answer { generation, text: is_text.then_some(said), end })
    }
}

/// Turns tokens into text.
struct Speaker<'a> {
    detokenizer: Option<Detokenizer<'a>>,
    filter: StopFilter<'a>,
    said: String,
}

impl<'a> Speaker<'a> {
    fn new(manner: &Manner<'a>) -> Self {
        Self {
            detokenizer: manner.text.map(|text| Detokenizer::new(text.tokenizer())),
            filter: StopFilter::new(manner.stops),
            said: String::new(),
        }
    }

    /// The text that is complete with this token.
    fn say(&mut self, token: u32) -> Result<&str, TokenizerError> {
        let piece = match &mut self.detokenizer {
            Some(detokenizer) => self.filter.push(&detokenizer.push(token)?),
            None => format!("{token} "),
        };
        let start = self.said.len();
        self.said += &piece;
        Ok(&self.said[start..])
    }

    /// Says the rest, and returns all that was said.
    fn finish(
        mut self,
        mut hear: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<String, TokenizerError> {
        if let Some(detokenizer) = self.detokenizer {
            let rest = self.filter.push(&detokenizer.finish()?) + &self.filter.finish();
            // There is nothing left to break off.
            let _ = hear(&rest);
            self.said += &rest;
        }
        Ok(self.said)
    }
}
