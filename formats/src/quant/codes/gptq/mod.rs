//! Codes whose errors make up for each other, as far as known inputs allow (Frantar et al. 2023, "GPTQ").
//!
//! Layout and grid are those of every other chooser. Columns are coded in turn, each rounded to where it best makes up
//! for the errors before it ([`Feedback`]); a group's scale is chosen when its turn comes, as the one under which the
//! group, feedback within it included, costs least.

mod feedback;
mod search;

pub use feedback::Feedback;

use super::best::{LANES, Lanes};
use super::{Codes, Grid};
use search::Group;

impl Grid {
    /// Quantises rows (at most [`Feedback::columns`] wide, already rounded to the dtype) for inputs of which
    /// `feedback` was made. Each row is quantised as if it were alone.
    ///
    /// `words` and `scales` are those of [`Grid::encode_rows`].
    pub fn encode_compensated(
        &self,
        rows: &[f32],
        feedback: &Feedback,
        words: &mut [u32],
        scales: &mut [f32],
    ) {
        let columns = feedback.columns();
        let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let words_per_row = size(self.layout.words_per_row(columns as u64));
        let groups_per_row = size(self.layout.groups_per_row(columns as u64));
        let outputs = words.chunks_mut(LANES * words_per_row);
        let outputs = outputs.zip(scales.chunks_mut(LANES * groups_per_row));
        for (rows, (words, scales)) in rows.chunks(LANES * columns).zip(outputs) {
            self.encode_lanes(rows, feedback, words, scales);
            let outputs = words.chunks_mut(words_per_row).zip(scales.chunks_mut(groups_per_row));
            for (row, (words, scales)) in rows.chunks(columns).zip(outputs) {
                // One value that is not finite would spoil every column after it.
                if !(row.iter().all(|w| w.is_finite()) && scales.iter().all(|s| s.is_finite())) {
                    self.encode_rows(row, columns, Codes::DEFAULT, words, scales);
                }
            }
        }
    }

    /// At most [`LANES`] rows side by side, so that each share read serves all of them.
    fn encode_lanes(
        &self,
        rows: &[f32],
        feedback: &Feedback,
        words: &mut [u32],
        scales: &mut [f32],
    ) {
        let columns = feedback.columns();
        let height = rows.len() / columns;
        let (words_per_row, groups_per_row) = (words.len() / height, scales.len() / height);
        let group_size = self.layout.group as usize;
        let words_per_group = self.layout.words_per_group() as usize;
        let mut errors: Vec<Lanes> = vec![[0.0; LANES]; columns];
        let mut codes = vec![0; group_size];
        let (mut in_turn, mut left) = (vec![0; group_size], vec![0.0; group_size]);
        for places in &feedback.groups {
            let passed_on = passed_on(feedback, places.clone(), &errors[..places.start]);
            let group = feedback.order[places.start] / group_size;
            let columns_in_turn = &feedback.order[places.clone()];
            for (lane, row) in rows.chunks(columns).enumerate() {
                let weights: Vec<f32> = columns_in_turn.iter().map(|&c| row[c]).collect();
                let targets: Vec<f32> =
                    weights.iter().zip(&passed_on).map(|(w, sums)| w + sums[lane]).collect();
                let (in_turn, left) = (&mut in_turn[..weights.len()], &mut left[..weights.len()]);
                let first = places.start;
                let unit =
                    Group { grid: self, feedback, first, weights: &weights, targets: &targets };
                scales[lane * groups_per_row + group] = unit.choose(in_turn, left);
                codes.fill(0);
                for ((&column, &code), (&e, errors)) in columns_in_turn
                    .iter()
                    .zip(&*in_turn)
                    .zip(left.iter().zip(&mut errors[places.clone()]))
                {
                    codes[column % group_size] = code;
                    errors[lane] = e;
                }
                let first_word = lane * words_per_row + group * words_per_group;
                self.layout.pack(&codes, &mut words[first_word..][..words_per_group]);
            }
        }
    }
}

/// What errors of earlier places add to the targets of some places, for each row.
fn passed_on(feedback: &Feedback, places: std::ops::Range<usize>, errors: &[Lanes]) -> Vec<Lanes> {
    /// Sums made together: each error that is read serves all of them.
    const TOGETHER: usize = 3;
    let mut sums = Vec::with_capacity(places.len());
    let mut place = places.start;
    while place < places.end {
        let count = TOGETHER.min(places.end - place);
        let shares: [&[f32]; TOGETHER] =
            std::array::from_fn(|i| &feedback.shares(place + i.min(count - 1))[..errors.len()]);
        let mut together = [[0.0; LANES]; TOGETHER];
        for (k, errors) in errors.iter().enumerate() {
            for (sums, shares) in together.iter_mut().zip(shares) {
                let share = shares[k];
                sums.iter_mut().zip(errors).for_each(|(sum, e)| *sum += share * e);
            }
        }
        sums.extend_from_slice(&together[..count]);
        place += count;
    }
    sums
}
