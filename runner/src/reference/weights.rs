//! Where a reference gets its weights from.

use crate::packed::PackedWeights;
use crate::plan::PlanWeight;

/// The weights of a plan as numbers, a row at a time: so that no weight need ever be in memory whole.
pub trait Weights: Sync {
    /// Writes row `n` of a matrix `[rows, columns]`; of a vector, its value `n`.
    fn row(&self, weight: &PlanWeight, n: usize, out: &mut [f32]);

    /// Is told when a weight has been read for the last time.
    fn release(&mut self, weight: &PlanWeight);

    /// A vector.
    fn vector(&self, weight: &PlanWeight) -> Vec<f32> {
        let mut out = vec![0.0; weight.rows as usize];
        (0..).zip(out.chunks_mut(1)).for_each(|(n, out)| self.row(weight, n, out));
        out
    }
}

impl Weights for PackedWeights {
    fn row(&self, weight: &PlanWeight, n: usize, out: &mut [f32]) {
        self.row(weight, n, out);
    }

    fn release(&mut self, weight: &PlanWeight) {
        self.forget(weight);
    }
}
