//! How far packed weights are from the checkpoint's, and how far they may be.
//!
//! The unit is half a step of MLC's rule in a group, `largest / (2 * zero_code)`, so that bounds are the same for every
//! scheme. MLC's rule rounds to the nearest step, so no value is off by more than 1. `best` may cut the largest values
//! off (2.8 at most) but must beat MLC's rule over each group. Codes that make up for each other's errors (`gptq`) obey
//! no such law: theirs are twice the most ever seen (4.9 for a value and 1.9 for a group, over the schemes of 3, 4 and 8
//! bits), and 1 for a whole matrix (0.7 seen). A wrong matrix is off by 4 to 9, so that is seen whatever the codes; a
//! single wrong code or scale only if it moves values by some five steps.

use packlight_formats::quant::{Grouped, Storage};
use rayon::prelude::*;

use crate::plan::PlanWeight;
use crate::reference::Weights;

/// How far off weights may be, in half steps of MLC's rule.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Bound {
    /// Any value.
    pub value: f64,
    /// A group, in the root of the mean square.
    pub group: f64,
    /// A matrix, likewise.
    pub matrix: f64,
}

impl Bound {
    /// Of codes that were each chosen for the least error of a group.
    pub const INDEPENDENT: Self = Self { value: 3.0, group: 1.05, matrix: 1.0 };
    /// Of codes that may make up for each other's errors.
    pub const COMPENSATED: Self = Self { value: 10.0, group: 4.0, matrix: 1.0 };
}

/// Something in a matrix, and how far off it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Place {
    pub row: usize,
    pub column: usize,
    /// In half steps of MLC's rule.
    pub error: f64,
}

/// How far a quantised matrix is from the checkpoint's.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct WeightError {
    pub weight: String,
    /// Root of the mean square error, as a share of that of the weights.
    pub relative: f64,
    /// The same in half steps of MLC's rule.
    pub matrix: f64,
    /// The group that is furthest off; its first column.
    pub group: Place,
    /// The value that is.
    pub value: Place,
}

impl WeightError {
    /// What is further off than it may be, in words.
    pub fn beyond(&self, bound: Bound) -> Option<String> {
        let Self { matrix, group, value, .. } = self;
        // A NaN is within no bound.
        let within = |error: f64, bound: f64| error <= bound;
        if !within(*matrix, bound.matrix) {
            return Some(format!(
                "the whole matrix is off by {matrix:.2} half steps, {} at most",
                bound.matrix
            ));
        }
        let Place { row, column, error } = *group;
        if !within(error, bound.group) {
            return Some(format!(
                "row {row}, the group from column {column}: off by {error:.2} half steps, {} at most",
                bound.group
            ));
        }
        let Place { row, column, error } = *value;
        (!within(error, bound.value)).then(|| {
            format!(
                "row {row}, column {column}: off by {error:.2} half steps, {} at most",
                bound.value
            )
        })
    }
}

/// Sums over some rows, and the worst of them.
#[derive(Clone, Copy, Default)]
struct Sums {
    errors: f64,
    weights: f64,
    units: f64,
    group: Place,
    value: Place,
}

impl Sums {
    fn and(self, other: Self) -> Self {
        Self {
            errors: self.errors + other.errors,
            weights: self.weights + other.weights,
            units: self.units + other.units,
            group: worse(self.group, other.group),
            value: worse(self.value, other.value),
        }
    }
}

/// The first of equals; what is no number is worst.
fn worse(a: Place, b: Place) -> Place {
    if b.error > a.error || (b.error.is_nan() && !a.error.is_nan()) { b } else { a }
}

/// How far a matrix is from the checkpoint's as it is packed; `None` where it is not quantised.
pub fn weight_error(
    weight: &PlanWeight,
    original: &impl Weights,
    packed: &impl Weights,
) -> Option<WeightError> {
    let Storage::Grouped { layout, .. } = weight.storage else { return None };
    let columns = weight.columns as usize;
    let rows: Vec<Sums> = (0..weight.rows as usize)
        .into_par_iter()
        .map_init(
            || (vec![0.0; columns], vec![0.0; columns]),
            |(values, found), row| {
                original.row(weight, row, values);
                packed.row(weight, row, found);
                row_sums(row, layout, values, found)
            },
        )
        .collect();
    // In order, so that the sums do not depend on threads.
    let Sums { errors, weights, units, group, value } =
        rows.into_iter().fold(Sums::default(), Sums::and);
    let share = |of: f64| if errors == 0.0 { 0.0 } else { (errors / of).sqrt() };
    Some(WeightError {
        weight: weight.name.clone(),
        relative: share(weights),
        matrix: share(units),
        group,
        value,
    })
}

fn row_sums(row: usize, layout: Grouped, values: &[f32], found: &[f32]) -> Sums {
    let size = layout.group as usize;
    let largest = |values: &[f32]| values.iter().fold(0f32, |max, value| max.max(value.abs()));
    // Errors passed on, and scales as small as they can be stored, reach groups of next to nothing as well.
    let floor = largest(values) / 16.0;
    let groups = (0..).step_by(size).zip(values.chunks(size).zip(found.chunks(size)));
    groups.fold(Sums::default(), |sums, (first, (values, found))| {
        let unit = f64::from(largest(values).max(floor)) / f64::from(2 * layout.zero_code());
        let in_units = |error: f64| if error == 0.0 { 0.0 } else { error / unit };
        let errors = values.iter().zip(found).map(|(w, f)| f64::from(*f) - f64::from(*w));
        let squares: f64 = errors.clone().map(|error| error * error).sum();
        let place = |column, error| Place { row, column, error: in_units(error) };
        let value = (first..).zip(errors).map(|(column, error)| place(column, error.abs()));
        sums.and(Sums {
            errors: squares,
            weights: values.iter().map(|w| f64::from(*w).powi(2)).sum(),
            units: unit * unit * values.len() as f64,
            group: place(first, (squares / values.len() as f64).sqrt()),
            value: value.fold(Place::default(), worse),
        })
    })
}
