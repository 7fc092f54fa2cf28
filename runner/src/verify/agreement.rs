//! Does a device compute what the packed weights say? Its answers against those of the CPU reference.
//!
//! Short prompts prove little: what depends on positions only shows late. So whole texts are compared, longer than any
//! sliding window; so is feeding tokens one by one, which takes other kernels and other paths through the KV cache than
//! feeding many; and so is what the device says when left to itself.

use std::time::Duration;

use super::material::{GREEDY_TOKENS, Material};
use super::positions_at_once;
use super::statistics::{Statistics, argmax};
use crate::engine::{Engine, EngineError};
use crate::executor::{Output, Want};
use crate::generate::{GenerateError, Generation, generate};
use crate::gpu::Caps;
use crate::text::Sampling;

/// Tokens that are fed one by one, at the beginning of a text and at its end.
const SINGLE: usize = 64;

/// What may differ between two ways of computing the same.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Tolerance {
    /// The largest mean Kullback-Leibler divergence.
    pub mean_kld: f64,
    /// The smallest share of positions with the same likeliest token.
    pub same_top: f64,
    /// The largest difference of mean negative log likelihoods.
    pub nll: f64,
    /// Two tokens are as good as each other if their log probabilities differ by no more: either is a right answer, and
    /// what follows is judged as it follows from the one that was given.
    pub tie: f32,
    /// The largest difference of any value of a step from the reference, as a share of the largest value in it.
    pub step: f32,
}

impl Tolerance {
    /// For arithmetic in f32.
    pub const F32: Self =
        Self { mean_kld: 1e-5, same_top: 0.995, nll: 1e-3, tie: 1e-3, step: 1e-3 };
    /// For arithmetic in f16, wherever it is used.
    pub const F16: Self = Self { mean_kld: 1e-3, same_top: 0.97, nll: 1e-2, tie: 0.1, step: 3e-2 };

    /// For what a device's kernels rely on.
    pub fn of(caps: &Caps) -> Self {
        if caps.f16.is_on() { Self::F16 } else { Self::F32 }
    }
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Agreement {
    /// The device (`Q`) against the reference (`base`) over the texts; nothing where the device is the reference.
    pub text: Option<Statistics>,
    /// The device fed token by token (`Q`) against itself fed many at a time (`base`).
    pub single: Statistics,
    /// What the device says after each prompt.
    pub greedy: Vec<Greedy>,
}

/// What a device says after a prompt, always taking the likeliest token.
#[derive(Clone, Debug, PartialEq)]
pub struct Greedy {
    pub prompt: Vec<u32>,
    pub tokens: Vec<u32>,
    pub prefill: Duration,
    pub decode: Duration,
    /// How the reference judges the tokens, one by one; nothing where the device is the reference.
    pub judged: Option<Judged>,
}

/// Tokens as the reference judges them, each after those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Judged {
    /// The reference takes the same.
    pub equal: usize,
    /// The reference takes another that is hardly likelier ([`Tolerance::tie`]).
    pub ties: usize,
    /// The first that is neither.
    pub first_wrong: Option<usize>,
    /// By how much the likeliest token was likelier than the one taken, at most: in nats.
    pub largest_gap: f32,
}

/// Runs a device and the reference on the same material. `progress` is told of steps done and to be done.
pub async fn agreement(
    device: &mut Engine,
    mut reference: Option<&mut Engine>,
    material: &Material,
    tolerance: Tolerance,
    mut progress: impl FnMut(usize, usize),
) -> Result<Agreement, GenerateError> {
    let steps = material.texts.len() + 1 + material.prompts.len();
    let mut done = 0;
    let mut step = || {
        done += 1;
        progress(done, steps);
    };
    let mut text = reference.is_some().then(Statistics::default);
    if let (Some(statistics), Some(reference)) = (&mut text, &mut reference) {
        for tokens in &material.texts {
            compare_text(device, reference, tokens, statistics).await?;
            step();
        }
    }
    let mut single = Statistics::default();
    let count = SINGLE.min(material.long.len());
    compare_single(device, &material.long[..count], count, &mut single).await?;
    if material.long.len() > count {
        compare_single(device, &material.long, count, &mut single).await?;
    }
    step();
    let mut greedy = Vec::new();
    for prompt in &material.prompts {
        device.reset();
        let go_on = |_| std::ops::ControlFlow::Continue(());
        let generation = generate(device, prompt, GREEDY_TOKENS, Sampling::GREEDY, go_on).await;
        let generation = match generation {
            // What was compared above has them.
            Err(error) if error.is_of_logits() => Generation::default(),
            generation => generation?,
        };
        let judged = match &mut reference {
            Some(reference) => Some(judge(reference, prompt, &generation.tokens, tolerance).await?),
            None => None,
        };
        let (prompt, tokens) = (prompt.clone(), generation.tokens);
        let (prefill, decode) = (generation.prefill, generation.decode);
        greedy.push(Greedy { prompt, tokens, prefill, decode, judged });
        step();
    }
    Ok(Agreement { text, single, greedy })
}

async fn compare_text(
    device: &mut Engine,
    reference: &mut Engine,
    tokens: &[u32],
    statistics: &mut Statistics,
) -> Result<(), EngineError> {
    device.reset();
    reference.reset();
    let vocab = device.vocab();
    for (first, piece) in pieces(device, 0, tokens) {
        let base = logits(reference, piece).await?;
        statistics.add(&base, &logits(device, piece).await?, vocab, &tokens[first + 1..]);
    }
    Ok(())
}

/// The last `count` tokens of a text: all in one call, and one by one.
async fn compare_single(
    device: &mut Engine,
    tokens: &[u32],
    count: usize,
    statistics: &mut Statistics,
) -> Result<(), EngineError> {
    let (before, last) = tokens.split_at(tokens.len() - count);
    let vocab = device.vocab();
    // A text fed piece by piece ends as it would end in one: so the pieces are compared one after the other.
    for (first, piece) in pieces(device, before.len(), last) {
        let before = [before, &last[..first]].concat();
        read(device, &before).await?;
        let together = logits(device, piece).await?;
        read(device, &before).await?;
        let mut apart = Vec::with_capacity(together.len());
        for token in piece {
            apart.extend(logits(device, &[*token]).await?);
        }
        statistics.add(&together, &apart, vocab, &last[first + 1..]);
    }
    Ok(())
}

/// Tokens that follow `past` others, in pieces whose logits are held at a time, each with how many come before it.
///
/// None reaches across the length from which on all positions are turned by other tables (LongRoPE): fed in one call, the
/// tokens before it would be turned as those behind it, which is not what they were when fed one by one.
fn pieces<'a>(
    engine: &Engine,
    past: usize,
    tokens: &'a [u32],
) -> impl Iterator<Item = (usize, &'a [u32])> + use<'a> {
    let step = positions_at_once(engine.vocab());
    let room = engine.turning_point().map_or(0, |point| (point as usize).saturating_sub(past));
    let (short, long) = tokens.split_at(room.min(tokens.len()));
    let mut first = 0;
    short.chunks(step).chain(long.chunks(step)).map(move |piece| {
        first += piece.len();
        (first - piece.len(), piece)
    })
}

/// Begins anew with these tokens.
async fn read(engine: &mut Engine, tokens: &[u32]) -> Result<(), EngineError> {
    engine.reset();
    if !tokens.is_empty() {
        engine.feed(tokens, Want::Nothing).await?;
    }
    Ok(())
}

async fn logits(engine: &mut Engine, tokens: &[u32]) -> Result<Vec<f32>, EngineError> {
    let want = if tokens.len() == 1 { Want::LastLogits } else { Want::AllLogits };
    Ok(match engine.feed(tokens, want).await? {
        Output::Logits(logits) => logits,
        Output::Nothing | Output::Token(_) => Vec::new(),
    })
}

/// Puts what was said to the reference, which says at each token what it would have said: so that every token counts,
/// those after a tie too.
async fn judge(
    reference: &mut Engine,
    prompt: &[u32],
    tokens: &[u32],
    tolerance: Tolerance,
) -> Result<Judged, EngineError> {
    let said = [prompt, &tokens[..tokens.len().saturating_sub(1)]].concat();
    let (before, asked) = said.split_at(prompt.len().saturating_sub(1));
    read(reference, before).await?;
    let vocab = reference.vocab();
    let mut judged = Judged::default();
    for (first, piece) in pieces(reference, before.len(), asked) {
        let all = logits(reference, piece).await?;
        for (i, (logits, &token)) in (first..).zip(all.chunks(vocab).zip(&tokens[first..])) {
            let likeliest = argmax(logits);
            let gap = logits[likeliest] - logits.get(token as usize).copied().unwrap_or(f32::NAN);
            if likeliest == token as usize {
                judged.equal += 1;
            } else if gap <= tolerance.tie {
                judged.ties += 1;
            } else {
                judged.first_wrong.get_or_insert(i);
            }
            judged.largest_gap = judged.largest_gap.max(gap);
        }
    }
    Ok(judged)
}

impl Agreement {
    /// The mean negative log likelihoods over the texts differ by no more than they may.
    pub fn nll_difference(&self) -> Option<f64> {
        let [base, q] = self.text.as_ref()?.mean_nll();
        Some((base - q).abs())
    }
}
