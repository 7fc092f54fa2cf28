//! Calibration: a plan is run over text while its weights are still being made, each from what it sees of the text.
//!
//! All windows of the text are run up to a matrix, the matrix is made from its inputs, and the run goes on with it as it
//! was made: later weights see what earlier ones have come to. See [`Windows`] for what is held meanwhile.

use packlight_formats::calibration::{Hessian, Inputs};
use packlight_formats::quant::Storage;
use rayon::prelude::*;

use super::{ReferenceError, Windows};
use crate::executor::WeightSink as _;
use crate::packed::{PackedError, PackedWeights};
use crate::plan::{Op, Plan, PlanWeight, SlotId, WeightId};

/// A plan whose quantised matrices are to be made, and the text that they are made for.
#[derive(Debug)]
pub struct Calibration {
    windows: Windows<PackedWeights>,
    /// The steps whose matrices are made from their inputs.
    stops: Vec<Stop>,
}

#[derive(Clone, Copy, Debug)]
struct Stop {
    step: usize,
    x: SlotId,
    weight: WeightId,
}

impl Calibration {
    /// Every grouped matrix is made from its inputs, but for those needed earlier (a token table that is the head too).
    pub fn new(plan: Plan, windows: Vec<Vec<u32>>) -> Result<Self, ReferenceError> {
        let mut met: Vec<WeightId> = Vec::new();
        let mut stops = Vec::new();
        for (step, op) in plan.steps.iter().map(|step| &step.op).enumerate() {
            if let Op::Matmul { x, weight, .. } = *op
                && !met.contains(&weight)
                && matches!(plan.weight(weight).storage, Storage::Grouped { .. })
            {
                stops.push(Stop { step, x, weight });
            }
            met.extend(op.weights());
        }
        let weights = PackedWeights::of(&plan.weights);
        Ok(Self { windows: Windows::new(plan, weights, windows)?, stops })
    }

    /// Multiplications to be done, more or less: what [`Calibration::run`] reports adds up to this.
    pub fn work(&self) -> u64 {
        self.stops.iter().map(|stop| self.work_of(stop) * self.windows.tokens()).sum()
    }

    /// Multiplications of one token for a stop: gathering what the matrix sees, and running it.
    fn work_of(&self, stop: &Stop) -> u64 {
        let PlanWeight { rows, columns, .. } = self.windows.plan().weight(stop.weight);
        u64::from(*columns) * (u64::from(*rows) + u64::from(*columns) / 2)
    }

    /// Runs it. `make` returns the bytes of a weight's records, made for those inputs where there are any; `progress`
    /// is told of work done.
    pub fn run<E: From<ReferenceError>>(
        mut self,
        mut make: impl FnMut(&PlanWeight, Option<&Hessian>) -> Result<Vec<Vec<u8>>, E>,
        mut progress: impl FnMut(u64),
    ) -> Result<(), E> {
        let mut held: Vec<WeightId> = Vec::new();
        let mut first = 0;
        for stop in std::mem::take(&mut self.stops) {
            let steps = &self.windows.plan().steps[first..stop.step];
            let weights: Vec<WeightId> = steps.iter().flat_map(|step| step.op.weights()).collect();
            for weight in weights {
                if !held.contains(&weight) {
                    held.push(weight);
                    let weight = self.windows.plan().weight(weight).clone();
                    hold(self.windows.weights_mut(), &weight, &make(&weight, None)?)?;
                }
            }
            let weight = self.windows.plan().weight(stop.weight).clone();
            let mut hessian = Hessian::new(weight.columns as usize);
            let work = self.work_of(&stop);
            self.windows.advance(stop.step, |tokens, reference| {
                let inputs = Inputs::new(reference.slot(stop.x), hessian.columns());
                hessian.bands().par_iter_mut().for_each(|band| band.add(&inputs));
                progress(work * tokens.len() as u64);
            });
            hold(self.windows.weights_mut(), &weight, &make(&weight, Some(&hessian))?)?;
            held.push(stop.weight);
            first = stop.step;
        }
        Ok(())
    }
}

fn hold(
    weights: &mut PackedWeights,
    weight: &PlanWeight,
    records: &[Vec<u8>],
) -> Result<(), ReferenceError> {
    for (i, record) in weight.storage.records().enumerate() {
        let bytes = records.get(i).filter(|b| b.len() as u64 == record.stored_bytes());
        let missing = || PackedError::Missing { record: record.name.clone() };
        weights.write(record, 0, bytes.ok_or_else(missing)?)?;
    }
    Ok(())
}
