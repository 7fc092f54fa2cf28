//! A prompt goes in, tokens come out.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use crate::engine::{Engine, EngineError};
use crate::executor::{Output, Want};
use crate::text::sample::{Sampler, Sampling, SamplingError};

/// What was generated, and how long it took.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Generation {
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

/// Feeds a prompt and generates at most `limit` tokens, telling `on_token` each; it may break off after any.
///
/// Greedy sampling happens on the device; any other needs the logits here.
pub async fn generate(
    engine: &mut Engine,
    prompt: &[u32],
    limit: u32,
    sampling: Sampling,
    mut on_token: impl FnMut(u32) -> ControlFlow<()>,
) -> Result<Generation, GenerateError> {
    let mut sampler = Sampler::new(sampling)?;
    let want = if sampling.is_greedy() { Want::Argmax } else { Want::LastLogits };
    let mut generation = Generation::default();
    let start = Instant::now();
    let mut first = start;
    let mut next = prompt.to_vec();
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
