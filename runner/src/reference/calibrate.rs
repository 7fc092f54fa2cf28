//! Calibration: a plan is run over text while its weights are still being made, each from what it sees of the text.
//!
//! Steps are run up to a matrix for all windows of the text, the matrix is made from its inputs, and the run goes on
//! with it as it was made: later weights see what earlier ones have come to. Between two matrices only what later steps
//! read is kept for each window (the residual stream and the inputs of the matrix), and only their weights are held.

use std::ops::Range;

use packlight_formats::calibration::{Hessian, Inputs};
use packlight_formats::quant::Storage;
use rayon::prelude::*;

use super::{KvCache, Reference, ReferenceError};
use crate::executor::{Capacity, Want, WeightSink as _};
use crate::packed::{PackedError, PackedWeights};
use crate::plan::{CacheId, Op, Plan, PlanWeight, SlotId, WeightId};

/// A plan whose quantised matrices are to be made, and the text that they are made for.
#[derive(Debug)]
pub struct Calibration {
    plan: Plan,
    /// Sequences of tokens that know nothing of each other.
    windows: Vec<Vec<u32>>,
    /// The steps whose matrices are made from their inputs.
    stops: Vec<Stop>,
}

#[derive(Clone, Copy, Debug)]
struct Stop {
    step: usize,
    x: SlotId,
    weight: WeightId,
}

/// What a window keeps between two stops.
#[derive(Debug, Default)]
struct Kept {
    slots: Vec<(SlotId, Vec<f32>)>,
    caches: Vec<(CacheId, KvCache)>,
}

impl Calibration {
    /// Every grouped matrix is made from its inputs, but for those needed earlier (a token table that is the head too).
    pub fn new(plan: Plan, windows: Vec<Vec<u32>>) -> Self {
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
        Self { plan, windows, stops }
    }

    /// Multiplications to be done, more or less: what [`Calibration::run`] reports adds up to this.
    pub fn work(&self) -> u64 {
        self.stops.iter().map(|stop| self.work_of(stop) * self.windows.len() as u64).sum()
    }

    /// Multiplications of one window for a stop: gathering what the matrix sees, and running it.
    fn work_of(&self, stop: &Stop) -> u64 {
        let PlanWeight { rows, columns, .. } = self.plan.weight(stop.weight);
        let tokens = self.windows.first().map_or(0, Vec::len) as u64;
        tokens * u64::from(*columns) * (u64::from(*rows) + u64::from(*columns) / 2)
    }

    /// Runs it. `make` returns the bytes of a weight's records, made for those inputs where there are any; `progress`
    /// is told of work done.
    pub fn run<E: From<ReferenceError>>(
        self,
        mut make: impl FnMut(&PlanWeight, Option<&Hessian>) -> Result<Vec<Vec<u8>>, E>,
        mut progress: impl FnMut(u64),
    ) -> Result<(), E> {
        let longest = self.windows.iter().map(Vec::len).max().unwrap_or(0);
        let longest = u32::try_from(longest).unwrap_or(u32::MAX);
        let capacity = Capacity { context: longest, chunk: longest, outputs: longest };
        let mut reference = Reference::new(self.plan.clone(), capacity);
        // There is no bundle yet whose tables could be read by range.
        reference.weights = PackedWeights::of(&self.plan.weights);
        let mut kept: Vec<Kept> = self.windows.iter().map(|_| Kept::default()).collect();
        let mut held: Vec<WeightId> = Vec::new();
        let mut first = 0;
        for stop in &self.stops {
            let steps = first..stop.step;
            for weight in self.plan.steps[steps.clone()].iter().flat_map(|step| step.op.weights()) {
                if !held.contains(&weight) {
                    reference.hold(weight, &make(self.plan.weight(weight), None)?)?;
                    held.push(weight);
                }
            }
            let (slots, caches) = self.needed(stop.step);
            let mut hessian = Hessian::new(self.plan.weight(stop.weight).columns as usize);
            for (tokens, kept) in self.windows.iter().zip(&mut kept) {
                reference.restore(std::mem::take(kept));
                reference.run(steps.clone(), tokens)?;
                let inputs = Inputs::new(&reference.slots[stop.x.0], hessian.columns());
                hessian.bands().par_iter_mut().for_each(|band| band.add(&inputs));
                *kept = reference.keep(&slots, &caches);
                progress(self.work_of(stop));
            }
            let later: Vec<WeightId> =
                self.plan.steps[stop.step..].iter().flat_map(|step| step.op.weights()).collect();
            for weight in held.extract_if(.., |weight| !later.contains(weight)) {
                reference.weights.forget(self.plan.weight(weight));
            }
            reference.hold(stop.weight, &make(self.plan.weight(stop.weight), Some(&hessian))?)?;
            held.push(stop.weight);
            first = stop.step;
        }
        Ok(())
    }

    /// The slots and caches whose values steps from `first` on read, as far as they are run.
    fn needed(&self, first: usize) -> (Vec<SlotId>, Vec<CacheId>) {
        let last = self.stops.last().map_or(first, |stop| stop.step);
        let (mut slots, mut caches) = (Vec::new(), Vec::new());
        for op in self.plan.steps[first..=last].iter().rev().map(|step| &step.op) {
            slots.retain(|slot| !op.overwrites().contains(slot));
            caches.retain(|cache| op.stores() != Some(*cache));
            slots.extend(op.reads());
            caches.extend(op.attends());
        }
        slots.sort_unstable();
        slots.dedup();
        caches.sort_unstable();
        caches.dedup();
        (slots, caches)
    }
}

impl Reference {
    /// Runs some steps for tokens at the beginning of a text.
    fn run(&mut self, steps: Range<usize>, tokens: &[u32]) -> Result<(), ReferenceError> {
        let live = self.capacity.live(tokens, 0, Want::AllLogits, self.plan.vocab())?;
        for i in steps {
            let op = self.plan.steps[i].op.clone();
            for slot in op.overwrites() {
                self.resize(slot, live);
            }
            match op {
                Op::HostGather { table, out } => self.gather(table, tokens, out),
                op => self.step(&op, tokens, live),
            }
        }
        Ok(())
    }

    fn hold(&mut self, weight: WeightId, records: &[Vec<u8>]) -> Result<(), ReferenceError> {
        for (i, record) in self.plan.weight(weight).storage.records().enumerate() {
            let bytes = records.get(i).filter(|b| b.len() as u64 == record.stored_bytes());
            let missing = || PackedError::Missing { record: record.name.clone() };
            self.weights.write(record, 0, bytes.ok_or_else(missing)?)?;
        }
        Ok(())
    }

    fn keep(&mut self, slots: &[SlotId], caches: &[CacheId]) -> Kept {
        let slots = slots.iter().map(|&slot| (slot, std::mem::take(&mut self.slots[slot.0])));
        let caches = caches.iter().map(|&cache| {
            let KvCache { keys, values } = &self.caches[cache.0];
            (cache, KvCache { keys: keys.clone(), values: values.clone() })
        });
        Kept { slots: slots.collect(), caches: caches.collect() }
    }

    fn restore(&mut self, kept: Kept) {
        for (slot, values) in kept.slots {
            self.slots[slot.0] = values;
        }
        for (cache, values) in kept.caches {
            self.caches[cache.0] = values;
        }
    }
}
