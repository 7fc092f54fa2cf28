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

/// Tokens that are read between two looks at whether to go on.
const STRIDE: usize = 256;

/// Reads all of a prompt but its last token, unless told to break off. [`generate`] then has little left to read.
///
/// Returns how many of its tokens the engine had seen already.
pub async fn prefill(
    engine: &mut Engine,
    prompt: &[u32],
    mut go_on: impl FnMut() -> ControlFlow<()>,
) -> Result<usize, EngineError> {
    let kept = engine.keep(prompt);
    let rest = &prompt[kept..prompt.len().saturating_sub(1).max(kept)];
    for tokens in rest.chunks(STRIDE) {
        if go_on().is_break() {
            break;
        }
        engine.feed(tokens, Want::Nothing).await?;
    }
    Ok(kept)
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
    for i in 0..limit {
        let token = match engine.feed(&next, want).await? {
            Output::Token(token) => token,
            Output::Logits(logits) => sampler.next(&logits)?,
            Output::Nothing => break,
        };
        if i == 0 {
            first = Instant::now();
        }
        generation.tokens.push(token);
        if on_token(token).is_break() {
            break;
        }
        next = vec![token];
    }
    generation.prefill = first - start;
    generation.decode = first.elapsed();
    Ok(generation)
}
