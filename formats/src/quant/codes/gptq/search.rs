//! Scale and codes of one group whose targets are known but for what its own columns will pass on.

use super::super::Grid;
use super::super::best::{self, Best, LANES, Lanes, Levels};
use super::feedback::Feedback;
use crate::quant::group::Rule as _;

/// A group of one row, its columns in the order in which they are coded.
pub(super) struct Group<'a> {
    pub(super) grid: &'a Grid,
    pub(super) feedback: &'a Feedback,
    /// The place of its first column.
    pub(super) first: usize,
    /// The weights.
    pub(super) weights: &'a [f32],
    /// The weights and what errors of earlier groups add to them.
    pub(super) targets: &'a [f32],
}

impl Group<'_> {
    /// Writes codes and the errors that are left, and returns the scale.
    pub(super) fn choose(&self, codes: &mut [u8], errors: &mut [f32]) -> f32 {
        // Where the group would best lie if it need not be rounded; scales are looked for around that.
        let relaxed = self.relaxed();
        let mut best = (Best::choose(self.grid, &relaxed, codes), f32::INFINITY);
        best.1 = self.costs(&[best.0; LANES])[0];
        let mut consider = |scales: Lanes| {
            for (scale, cost) in scales.into_iter().zip(self.costs(&scales)) {
                if cost < best.1 {
                    best = (scale, cost);
                }
            }
        };
        for scales in best::guesses(self.grid, &relaxed) {
            consider(scales);
        }
        self.write(best.0, codes, errors);
        best.0
    }

    /// Shares among the group's own columns.
    fn shares(&self, i: usize) -> &[f32] {
        &self.feedback.shares(self.first + i)[self.first..]
    }

    fn relaxed(&self) -> Vec<f32> {
        let mut relaxed: Vec<f32> = Vec::with_capacity(self.targets.len());
        for (i, &target) in self.targets.iter().enumerate() {
            let moved = self.weights.iter().zip(&relaxed).map(|(w, r)| w - r);
            let passed_on: f32 = moved.zip(self.shares(i)).map(|(e, share)| e * share).sum();
            relaxed.push(target + passed_on);
        }
        relaxed
    }

    /// What the group costs under each of several scales.
    fn costs(&self, scales: &Lanes) -> Lanes {
        let levels = Levels::of(self.grid);
        let inverse = scales.map(inverse);
        let mut errors: Vec<Lanes> = Vec::with_capacity(self.targets.len());
        let mut costs = [0.0; LANES];
        for (i, (&weight, &target)) in self.weights.iter().zip(self.targets).enumerate() {
            let mut targets = [target; LANES];
            for (errors, share) in errors.iter().zip(self.shares(i)) {
                targets.iter_mut().zip(errors).for_each(|(target, e)| *target += e * share);
            }
            let cost = self.feedback.costs[self.first + i];
            let mut left = [0.0; LANES];
            for lane in 0..LANES {
                let decoded = levels.multiple(targets[lane] * inverse[lane]) * scales[lane];
                let distance = targets[lane] - decoded;
                costs[lane] += cost * distance * distance;
                left[lane] = weight - decoded;
            }
            errors.push(left);
        }
        costs
    }

    fn write(&self, scale: f32, codes: &mut [u8], errors: &mut [f32]) {
        let levels = Levels::of(self.grid);
        let inverse = inverse(scale);
        for (i, (&weight, &target)) in self.weights.iter().zip(self.targets).enumerate() {
            let passed = errors.iter().zip(self.shares(i)).take(i);
            let target = passed.fold(target, |target, (e, share)| target + e * share);
            let multiple = levels.multiple(target * inverse);
            codes[i] = levels.code(multiple);
            errors[i] = weight - multiple * scale;
        }
    }
}

/// Zero has none: then nothing but zero is coded.
fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { scale.recip() }
}
