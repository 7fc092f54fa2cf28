//! Where a device goes wrong: every step of one call, against the reference.

use super::Tolerance;
use crate::engine::{Engine, EngineError};
use crate::executor::{Inputs, Want};

/// A step on the device and in the reference.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct StepError {
    /// Its number in the plan.
    pub step: usize,
    /// Where in the model it belongs.
    pub place: String,
    /// Its line in the plan.
    pub op: String,
    /// The tensor that it leaves something in.
    pub tensor: String,
    /// The largest difference of a value.
    pub error: f32,
    /// The same as a share of the largest value of the reference.
    pub relative: f32,
}

/// Every step of a call.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Trace {
    pub tokens: usize,
    /// Positions before them.
    pub past: u32,
    pub steps: Vec<StepError>,
}

impl Trace {
    /// The first step that differs by more than it may.
    pub fn first_wrong(&self, tolerance: Tolerance) -> Option<&StepError> {
        // Whatever is no number has failed too.
        self.steps.iter().find(|step| !matches!(step.relative.partial_cmp(&tolerance.step), Some(order) if order.is_le()))
    }
}

/// Feeds a text to both, and goes through the call of its last `count` tokens step by step; `None` where `device` is no
/// GPU. Differences are those of the whole way: a step is given what the device itself has computed before it.
pub async fn trace(
    device: &mut Engine,
    reference: &mut Engine,
    text: &[u32],
    count: usize,
) -> Result<Option<Trace>, EngineError> {
    let (before, tokens) = text.split_at(text.len().saturating_sub(count));
    for engine in [&mut *device, &mut *reference] {
        engine.reset();
        if !before.is_empty() {
            engine.feed(before, Want::Nothing).await?;
        }
    }
    let past = device.position();
    let rows = device.rows(tokens).await?;
    let inputs = Inputs { tokens, rows: &rows };
    let Some((gpu, reference)) = Engine::pair(device, reference) else { return Ok(None) };
    let plan = reference.plan().clone();
    let live = reference.begin(inputs, past, Want::AllLogits)?;
    gpu.begin_steps(inputs, past)?;
    let mut steps = Vec::new();
    for (step, planned) in plan.steps.iter().enumerate() {
        reference.step(step, tokens, live);
        let left = planned.op.leaves();
        let expected = reference.left(left, live.past + live.tokens);
        let found = gpu.step(&plan, step, live).await?;
        let differences =
            found.iter().zip(&expected).map(|(found, expected)| (found - expected).abs());
        let error = differences.fold(0.0, largest);
        let size = expected.iter().map(|value| value.abs()).fold(0.0, largest);
        steps.push(StepError {
            step,
            place: planned.place.clone(),
            op: plan.line(&planned.op),
            tensor: plan.left_text(left),
            error,
            relative: if error == 0.0 { 0.0 } else { error / size },
        });
    }
    Ok(Some(Trace { tokens: tokens.len(), past, steps }))
}

/// The larger of two, or NaN where one is.
fn largest(a: f32, b: f32) -> f32 {
    if a.is_nan() || a > b { a } else { b }
}
