//! What quantisation costs: a bundle's weights against the checkpoint's, both through the reference.
//!
//! Both models are run over all texts layer by layer ([`Windows`]), so the checkpoint's weights are read in order, once,
//! and of the checkpoint only a layer is held, beside the packed bundle and the keys and values of both sides. Logits are
//! made and compared some positions at a time.

use std::ops::Range;

use super::positions_at_once;
use super::statistics::{Statistics, argmax};
use crate::bundle::Bundle;
use crate::engine::EngineError;
use crate::executor::CallError;
use crate::packed::PackedWeights;
use crate::plan::Plan;
use crate::reference::{Weights, Windows};
use crate::source::Source;

/// A model: its plan, and where its weights are.
#[derive(Debug)]
pub struct Side<W> {
    pub plan: Plan,
    pub weights: W,
}

impl Side<PackedWeights> {
    /// A bundle's. `progress` is told the bytes of each chunk.
    pub async fn load<S: Source>(
        bundle: &Bundle<S>,
        progress: impl FnMut(u64),
    ) -> Result<Self, EngineError> {
        let plan = Plan::lower(bundle.model(), bundle.assignment());
        let mut weights = PackedWeights::of(&plan.weights);
        bundle.load::<_, EngineError>(&mut weights, progress).await?;
        weights.finish()?;
        Ok(Self { plan, weights })
    }
}

/// A prompt and the likeliest tokens after it, as the bundle finds them.
#[derive(Clone, Debug)]
pub struct Continuation {
    pub prompt: Vec<u32>,
    pub tokens: Vec<u32>,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Cost {
    /// The bundle (`Q`) against the checkpoint (`base`).
    pub text: Statistics,
    /// For each continuation, how many tokens the checkpoint would have begun with as well.
    pub greedy_prefix: Vec<usize>,
}

/// Why two models cannot be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CostError {
    #[error("{bundle} tokens have logits in the bundle, {checkpoint} in the checkpoint")]
    Vocab { bundle: u32, checkpoint: u32 },
    #[error(transparent)]
    Call(#[from] CallError),
}

/// Runs both models over `texts`, and the checkpoint's over the `continuations`. `progress` is told how many of how
/// many multiplications are done.
pub fn cost<B: Weights, Q: Weights>(
    checkpoint: Side<B>,
    bundle: Side<Q>,
    texts: &[Vec<u32>],
    continuations: &[Continuation],
    mut progress: impl FnMut(u64, u64),
) -> Result<Cost, CostError> {
    let [vocab, other] = [&checkpoint.plan, &bundle.plan].map(|plan| plan.slot(plan.logits).width);
    if vocab != other {
        return Err(CostError::Vocab { bundle: other, checkpoint: vocab });
    }
    // What a model says is a text to which it is asked what it would have said itself.
    let said = |Continuation { prompt, tokens }: &Continuation| {
        [prompt.as_slice(), &tokens[..tokens.len().saturating_sub(1)]].concat()
    };
    let all = texts.iter().cloned().chain(continuations.iter().map(said)).collect();
    let mut base = Windows::new(checkpoint.plan, checkpoint.weights, all)?;
    let mut q = Windows::new(bundle.plan, bundle.weights, texts.to_vec())?;
    let total = work(&base, 0..base.plan().steps.len()) + work(&q, 0..q.plan().steps.len());
    let mut done = 0;
    run_to_head(&mut base, &mut done, |done| progress(done, total));
    run_to_head(&mut q, &mut done, |done| progress(done, total));

    let vocab = vocab as usize;
    let step = positions_at_once(vocab);
    let head = [head_work(&base), head_work(&q)];
    let mut statistics = Statistics::default();
    for (i, text) in texts.iter().enumerate() {
        for (first, tokens) in (0..).step_by(step).zip(text.chunks(step)) {
            let positions = first..first + tokens.len();
            let logits = [base.logits(i, positions.clone()), q.logits(i, positions)];
            statistics.add(logits[0], logits[1], vocab, &text[first + 1..]);
            done += (head[0] + head[1]) * tokens.len() as u64;
            progress(done, total);
        }
    }
    let mut prefix = |(i, Continuation { prompt, tokens }): (usize, &Continuation)| {
        let same = (prompt.len() - 1..).zip(tokens).take_while(|(position, token)| {
            argmax(base.logits(i, *position..position + 1)) == **token as usize
        });
        same.count()
    };
    let greedy_prefix = (texts.len()..).zip(continuations).map(&mut prefix).collect();
    progress(total, total);
    Ok(Cost { text: statistics, greedy_prefix })
}

fn run_to_head<W: Weights>(
    windows: &mut Windows<W>,
    done: &mut u64,
    mut progress: impl FnMut(u64),
) {
    let mut first = 0;
    for end in windows.stages() {
        let per_token = work_per_token(windows, first..end);
        windows.advance(end, |tokens, _| {
            *done += per_token * tokens.len() as u64;
            progress(*done);
        });
        first = end;
    }
}

fn work<W: Weights>(windows: &Windows<W>, steps: Range<usize>) -> u64 {
    work_per_token(windows, steps) * windows.tokens()
}

fn head_work<W: Weights>(windows: &Windows<W>) -> u64 {
    work_per_token(windows, windows.head()..windows.plan().steps.len())
}

fn work_per_token<W: Weights>(windows: &Windows<W>, steps: Range<usize>) -> u64 {
    let plan = windows.plan();
    plan.steps[steps].iter().map(|step| plan.work(&step.op)).sum()
}
