//! Texts side by side: a plan is run over all of them some steps at a time, so that each weight is read in one go.
//!
//! Between two goes each text keeps only what later steps read, mostly the residual stream, and of the weights only
//! those in use need to be in memory: a model of any size fits.

use std::ops::Range;

use super::{KvCache, Reference, Weights};
use crate::executor::{CallError, Capacity, Live, Want};
use crate::plan::{CacheId, HistoryId, Left, Op, Plan, Rows, SlotId, WeightId};

/// A plan on its way through texts that know nothing of each other.
#[derive(Debug)]
pub struct Windows<W> {
    reference: Reference<W>,
    texts: Vec<Text>,
    /// The step that comes next.
    next: usize,
}

#[derive(Debug)]
struct Text {
    tokens: Vec<u32>,
    /// What it keeps while the others run.
    kept: Kept,
}

#[derive(Debug, Default)]
struct Kept {
    slots: Vec<(SlotId, Vec<f32>)>,
    caches: Vec<(CacheId, KvCache)>,
    histories: Vec<(HistoryId, Vec<f32>)>,
}

/// What later steps read.
#[derive(Default)]
struct Needed {
    slots: Vec<SlotId>,
    caches: Vec<CacheId>,
    histories: Vec<HistoryId>,
}

impl<W: Weights> Windows<W> {
    /// Texts of token ids, each at the beginning of a context of its own.
    pub fn new(plan: Plan, weights: W, texts: Vec<Vec<u32>>) -> Result<Self, CallError> {
        let longest = texts.iter().map(Vec::len).max().unwrap_or(0);
        let longest = u32::try_from(longest).unwrap_or(u32::MAX);
        let capacity = Capacity { context: longest, chunk: longest, outputs: longest };
        for tokens in &texts {
            capacity.live(tokens, 0, Want::AllLogits, plan.vocab())?;
        }
        let text = |tokens| Text { tokens, kept: Kept::default() };
        let texts = texts.into_iter().map(text).collect();
        Ok(Self { reference: Reference::over(plan, weights, capacity), texts, next: 0 })
    }

    /// The plan that is run.
    pub fn plan(&self) -> &Plan {
        &self.reference.plan
    }

    /// Where its weights come from.
    pub fn weights_mut(&mut self) -> &mut W {
        &mut self.reference.weights
    }

    /// Tokens of all windows.
    pub fn tokens(&self) -> u64 {
        self.texts.iter().map(|text| text.tokens.len() as u64).sum()
    }

    /// Runs the steps before `end` that have not been run, for every window. After each window `see` is shown the
    /// values of its tokens.
    pub fn advance(&mut self, end: usize, mut see: impl FnMut(&[u32], &Reference<W>)) {
        let steps = self.next..end;
        let needed = self.needed(end);
        for text in &mut self.texts {
            self.reference.restore(std::mem::take(&mut text.kept));
            self.reference.run(steps.clone(), &text.tokens);
            see(&text.tokens, &self.reference);
            text.kept = self.reference.keep(&needed);
        }
        self.next = end;
        self.release(steps);
    }

    /// The places of the plan, one after the other, up to the head: good steps to stop at on the way.
    pub fn stages(&self) -> Vec<usize> {
        let (steps, head) = (&self.plan().steps, self.head());
        (1..=head).filter(|&i| i == head || steps[i].place != steps[i - 1].place).collect()
    }

    /// The first step of the head, whose rows are positions that have nothing more to do with each other.
    pub fn head(&self) -> usize {
        let is_output = |op: &Op| match op.leaves() {
            Left::Slot(slot) => self.plan().slot(slot).rows == Rows::Outputs,
            Left::Cache(_) | Left::History(_) => false,
        };
        self.plan().steps.iter().position(|step| is_output(&step.op)).unwrap_or(0)
    }

    /// Logits of some positions of a text, `[positions, vocab]`, once all have come to the [head](Windows::head).
    pub fn logits(&mut self, text: usize, positions: Range<usize>) -> &[f32] {
        let tokens = &self.texts[text].tokens[positions.clone()];
        for (slot, values) in &self.texts[text].kept.slots {
            let width = self.reference.plan.slot(*slot).width as usize;
            let rows = &values[positions.start * width..positions.end * width];
            self.reference.slots[slot.0] = rows.to_vec();
        }
        self.reference.run(self.next..self.reference.plan.steps.len(), tokens);
        &self.reference.slots[self.reference.plan.logits.0]
    }

    /// What steps from `first` on read.
    fn needed(&self, first: usize) -> Needed {
        let Needed { mut slots, mut caches, mut histories } = Needed::default();
        for op in self.plan().steps[first..].iter().rev().map(|step| &step.op) {
            slots.retain(|slot| !op.overwrites().contains(slot));
            caches.retain(|cache| op.stores() != Some(*cache));
            slots.extend(op.reads());
            caches.extend(op.attends());
            match *op {
                Op::StoreProduct { history, .. } => histories.retain(|&kept| kept != history),
                Op::Convolve { history, .. } => histories.push(history),
                _ => {}
            }
        }
        slots.sort_unstable();
        slots.dedup();
        caches.sort_unstable();
        caches.dedup();
        Needed { slots, caches, histories }
    }

    /// Lets go of the weights of some steps that no later step reads.
    fn release(&mut self, steps: Range<usize>) {
        let plan = &self.reference.plan;
        let read = |steps: Range<usize>| plan.steps[steps].iter().flat_map(|s| s.op.weights());
        let later: Vec<WeightId> = read(steps.end..plan.steps.len()).collect();
        for weight in read(steps).filter(|weight| !later.contains(weight)) {
            self.reference.weights.release(plan.weight(weight));
        }
    }
}

impl<W: Weights> Reference<W> {
    /// What a slot holds after the last step that was run.
    pub fn slot(&self, slot: SlotId) -> &[f32] {
        &self.slots[slot.0]
    }

    /// Runs some steps for tokens at the beginning of a text.
    fn run(&mut self, steps: Range<usize>, tokens: &[u32]) {
        let count = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        let live = Live { tokens: count, past: 0, outputs: count };
        self.set_length(count);
        for i in steps {
            let op = self.plan.steps[i].op.clone();
            for slot in op.overwrites() {
                self.resize(slot, live);
            }
            match op {
                // Here tables are weights like any other.
                Op::HostGather { table, out } => self.gather(table, tokens, out),
                _ => self.step(i, tokens, live),
            }
        }
    }

    fn keep(&mut self, needed: &Needed) -> Kept {
        let slots = needed.slots.iter().map(|&id| (id, std::mem::take(&mut self.slots[id.0])));
        let slots = slots.collect();
        let caches = needed.caches.iter().map(|&id| {
            let KvCache { keys, values } = &self.caches[id.0];
            (id, KvCache { keys: keys.clone(), values: values.clone() })
        });
        let histories = needed.histories.iter().map(|&id| (id, self.histories[id.0].clone()));
        Kept { slots, caches: caches.collect(), histories: histories.collect() }
    }

    fn restore(&mut self, kept: Kept) {
        for (slot, values) in kept.slots {
            self.slots[slot.0] = values;
        }
        for (cache, values) in kept.caches {
            self.caches[cache.0] = values;
        }
        for (history, values) in kept.histories {
            self.histories[history.0] = values;
        }
    }
}
