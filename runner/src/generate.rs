//! A prompt goes in, tokens come out.

use std::ops::ControlFlow;
use std::time::Duration;

use web_time::Instant;

use crate::engine::{Engine, EngineError};
use crate::executor::{Output, Want};
use crate::text::sample::{Sampler, Sampling, SamplingError};

/// What was generated, and how long it took.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Generation {
    /// How many tokens of the prompt the engine had seen already.
    pub cached: usize,
    /// The new tokens; a stop token is the last of them.
    pub tokens: Vec<u32>,
    /// From the prompt to the first token.
    pub prefill: Duration,
    /// From the first token to the last.
    pub decode: Duration,
}

impl Generation {
    /// Tokens per second of the decoding, which makes all tokens but the first.
    pub fn tokens_per_second(&self) -> Option<f64> {
        let made = self.tokens.len().checked_sub(1).filter(|&made| made > 0)?;
        Some(made as f64 / self.decode.as_secs_f64())
    }
}

/// Why generation stopped with an error.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Sampling(#[from] SamplingError),
}

impl GenerateError {
    /// Whether the model's logits were no numbers, which whoever judges a model wants to count and not to end with.
    pub fn is_of_logits(&self) -> bool {
        matches!(self, Self::Engine(EngineError::NoToken(_)))
    }
}

/// How long a reader may wait for several tokens at once.
const BURST: Duration = Duration::from_millis(25);

/// Reads the beginning of a prompt, unless told to break off, which is asked between calls to the device: so much of it
/// that [`generate`] has no more than a call left to read.
///
/// Returns how many of its tokens the engine had seen already, and whether it was broken off.
pub async fn prefill(
    engine: &mut Engine,
    prompt: &[u32],
    mut go_on: impl FnMut() -> ControlFlow<()>,
) -> Result<ControlFlow<usize, usize>, EngineError> {
    let kept = engine.keep(prompt);
    let stride = engine.stride() as usize;
    let mut rest = &prompt[kept..];
    while rest.len() > stride {
        if go_on().is_break() {
            return Ok(ControlFlow::Break(kept));
        }
        let (tokens, after) = rest.split_at(stride);
        engine.feed(tokens, Want::Nothing).await?;
        rest = after;
    }
    Ok(if go_on().is_break() { ControlFlow::Break(kept) } else { ControlFlow::Continue(kept) })
}

/// Reads a prompt, as far as the engine has not seen it, and generates at most `limit` tokens, telling `on_token` each;
/// it may break off after any.
///
/// The most likely token is found on the device; any other choice needs the logits here.
pub async fn generate(
    engine: &mut Engine,
    prompt: &[u32],
    limit: u32,
    sampling: Sampling,
    mut on_token: impl FnMut(u32) -> ControlFlow<()>,
) -> Result<Generation, GenerateError> {
    let mut sampler = Sampler::new(sampling, prompt)?;
    let want = if sampling.is_argmax() { Want::Argmax } else { Want::LastLogits };
    let start = Instant::now();
    let mut generation = Generation { cached: engine.keep(prompt), ..Generation::default() };
    let mut first = start;
    let mut next = prompt[generation.cached..].to_vec();
    // Tokens that the device is asked for at once: as many as come without a wait that shows.
    let mut ahead = 1;
    'answer: while generation.tokens.len() < limit as usize {
        let begin = Instant::now();
        let made = match (want, &next[..]) {
            (Want::Argmax, [token]) if !generation.tokens.is_empty() => {
                let left = limit as usize - generation.tokens.len();
                engine.go_on(*token, ahead.min(u32::try_from(left).unwrap_or(u32::MAX))).await?
            }
            _ => match engine.feed(&next, want).await? {
                Output::Token(token) => vec![token],
                Output::Logits(logits) => vec![sampler.next(&logits)?],
                Output::Nothing => break,
            },
        };
        if generation.tokens.is_empty() {
            first = Instant::now();
        } else {
            let each = begin.elapsed().as_nanos() / made.len().max(1) as u128;
            let fit = BURST.as_nanos() / each.max(1);
            ahead = u32::try_from(fit).unwrap_or(u32::MAX).clamp(1, engine.ahead());
        }
        for (i, &token) in made.iter().enumerate() {
            generation.tokens.push(token);
            if on_token(token).is_break() {
                // Those that came after it were never said.
                engine.forget(made.len() - 1 - i);
                break 'answer;
            }
        }
        let Some(&last) = made.last() else { break };
        next = vec![last];
    }
    generation.prefill = first - start;
    generation.decode = first.elapsed();
    Ok(generation)
}
