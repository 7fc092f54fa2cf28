//! The weights of a checkpoint as numbers, before anything is rounded: what quantisation is measured against.

use std::collections::HashMap;

use packlight_formats::model::{Model, Recipe, Weight};

use crate::band::{release, runs};
use crate::checkpoint::Checkpoint;

/// A checkpoint seen through the description of its model.
#[derive(Debug)]
pub struct Original<'a> {
    checkpoint: &'a Checkpoint,
    /// By name.
    weights: HashMap<&'a str, &'a Weight>,
}

impl<'a> Original<'a> {
    /// `model` must fit the checkpoint, as that of a [`Conversion`](crate::Conversion) does.
    pub fn new(checkpoint: &'a Checkpoint, model: &'a Model) -> Self {
        let weights = model.weights().into_iter().map(|weight| (weight.name.as_str(), weight));
        Self { checkpoint, weights: weights.collect() }
    }

    /// Writes row `n` of a weight, seen as rows as long as `out`, which are its own or parts of them; what the checkpoint
    /// does not have stays as it is.
    pub fn row(&self, weight: &str, n: u64, out: &mut [f32]) {
        let Some(weight) = self.weights.get(weight) else { return };
        let mut values = Vec::with_capacity(out.len());
        let (columns, width) = (weight.columns(), out.len() as u64);
        let (row, left) = (n * width / columns, n * width % columns);
        for run in runs(self.checkpoint, weight, &(row..row + 1)) {
            for (first, bytes) in run.pieces(left..left + width) {
                run.element.read(bytes, &mut values);
                if let Some(scales) = &run.scales {
                    scales.apply(&mut values, first, weight.columns());
                }
            }
        }
        if let Recipe::AddOne(_) = weight.recipe {
            for x in &mut values {
                *x += 1.0;
            }
        }
        out.iter_mut().zip(values).for_each(|(out, value)| *out = value);
    }

    /// Lets go of the pages behind a weight, which are read again where they are needed again.
    pub fn release(&self, weight: &str) {
        if let Some(weight) = self.weights.get(weight) {
            release(self.checkpoint, weight, &(0..weight.rows()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Conversion, Piece, StreamOptions};
    use packlight_formats::quant::{Codes, Rounding, Scheme};

    /// The demo is in bfloat16, so a conversion to it loses nothing.
    #[test]
    fn rows_are_those_of_a_conversion_that_loses_nothing() {
        let demo = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../demo"));
        let checkpoint = Checkpoint::open(demo).unwrap();
        let scheme = Scheme::find("q0bf16").unwrap();
        let conversion = Conversion::plan(&checkpoint, scheme, &[], Codes::DEFAULT).unwrap();
        let mut records = vec![Vec::new(); conversion.records().len()];
        let options = StreamOptions { allow_non_finite: false, rounding: Rounding::Even };
        let wanted = vec![true; records.len()];
        let stream =
            conversion.stream(options, None, &wanted, |Piece { record, bytes, .. }| {
                let halves = bytes.chunks_exact(2);
                let values = halves.map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32());
                records[record].extend(values);
                Ok::<_, crate::ConvertError>(())
            });
        stream.unwrap();
        let original = Original::new(&checkpoint, &conversion.model);
        for (planned, record) in conversion.weights.iter().zip(records) {
            let columns = usize::try_from(planned.weight.columns()).unwrap();
            for (n, row) in (0..).zip(record.chunks(columns)) {
                let mut found = vec![f32::NAN; columns];
                original.row(&planned.weight.name, n, &mut found);
                assert_eq!(found, row, "{} row {n}", planned.weight.name);
            }
        }
    }
}
