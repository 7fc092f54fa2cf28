//! `gptq` on rows whose inputs are related, unrelated or useless.

#![expect(clippy::cast_possible_truncation, reason = "a row is short")]

mod matrices;

use matrices::Distribution;
use packlight_formats::Dtype;
use packlight_formats::calibration::{Hessian, Inputs};
use packlight_formats::quant::codes::gptq::Feedback;
use packlight_formats::quant::float::{from_stored_bits, round_to, stored_bits};
use packlight_formats::quant::{Codes, Grid, Grouped, Rounding};

const Q3: Grouped = Grouped::mlc(3, 40);
const Q4: Grouped = Grouped::mlc(4, 32);
/// Not a whole number of groups of either.
const COLUMNS: usize = 168;
/// Not a whole number of what is quantised side by side.
const ROWS: usize = 11;

fn grid(layout: Grouped, dtype: Dtype) -> Grid {
    Grid { layout, dtype, rounding: Rounding::Even }
}

fn rows(grid: &Grid) -> Vec<f32> {
    let values = Distribution::StudentT4.values(ROWS * COLUMNS);
    values.into_iter().map(|w| round_to(grid.dtype, w)).collect()
}

fn hessian(inputs: &[f32]) -> Hessian {
    let mut hessian = Hessian::new(COLUMNS);
    let inputs = Inputs::new(inputs, COLUMNS);
    hessian.bands().iter_mut().for_each(|band| band.add(&inputs));
    hessian
}

/// Inputs of which each is a mixture of fewer, as activations are.
fn correlated() -> Hessian {
    let (tokens, sources) = (600, 60);
    let source = Distribution::Gaussian.values(tokens * sources);
    let mixing = Distribution::StudentT4.values(sources * COLUMNS);
    let own = Distribution::StudentT4.values(tokens * COLUMNS);
    let mut inputs = own;
    for (t, x) in inputs.chunks_mut(COLUMNS).enumerate() {
        for (s, mixing) in mixing.chunks(COLUMNS).enumerate() {
            let weight = 50.0 * source[t * sources + s];
            x.iter_mut().zip(mixing).for_each(|(x, m)| *x += weight * m);
        }
    }
    hessian(&inputs)
}

/// Every direction alike.
fn identity() -> Hessian {
    let inputs = (0..COLUMNS * COLUMNS).map(|i| f32::from(u8::from(i / COLUMNS == i % COLUMNS)));
    hessian(&inputs.collect::<Vec<_>>())
}

/// What is restored from the words and scales that `encode` writes.
fn decoded(grid: &Grid, rows: &[f32], encode: impl Fn(&[f32], &mut [u32], &mut [f32])) -> Vec<f32> {
    let words_per_row = grid.layout.words_per_row(COLUMNS as u64) as usize;
    let groups_per_row = grid.layout.groups_per_row(COLUMNS as u64) as usize;
    let count = rows.len() / COLUMNS;
    let (mut words, mut scales) =
        (vec![0; count * words_per_row], vec![0.0; count * groups_per_row]);
    encode(rows, &mut words, &mut scales);
    for scale in &mut scales {
        *scale = from_stored_bits(grid.dtype, stored_bits(grid.dtype, *scale));
    }
    let mut out = vec![0.0; rows.len()];
    for ((out, words), scales) in
        out.chunks_mut(COLUMNS).zip(words.chunks(words_per_row)).zip(scales.chunks(groups_per_row))
    {
        grid.layout.decode_row(words, scales, out);
    }
    out
}

fn by_gptq(grid: &Grid, rows: &[f32], hessian: &Hessian) -> Vec<f32> {
    let feedback = Feedback::of(hessian, grid.layout).expect("sums of use");
    decoded(grid, rows, |rows, words, scales| {
        grid.encode_compensated(rows, &feedback, words, scales);
    })
}

fn by_best(grid: &Grid, row: &[f32]) -> Vec<f32> {
    let best = Codes::find("best").expect("a chooser");
    decoded(grid, row, |row, words, scales| grid.encode_rows(row, row.len(), best, words, scales))
}

/// `e^T H e` of a row.
fn loss(row: &[f32], decoded: &[f32], hessian: &Hessian) -> f64 {
    let errors: Vec<f64> = row.iter().zip(decoded).map(|(&w, &d)| f64::from(w - d)).collect();
    let term =
        |i: usize| errors[i] * (0..COLUMNS).map(|j| hessian.get(i, j) * errors[j]).sum::<f64>();
    (0..COLUMNS).map(term).sum()
}

#[test]
fn outputs_lose_much_less_than_with_best() {
    let hessian = correlated();
    for layout in [Q3, Q4] {
        for dtype in [Dtype::Float16, Dtype::Bfloat16, Dtype::Float32] {
            let grid = grid(layout, dtype);
            let (mut total, mut total_of_best) = (0.0, 0.0);
            let all = rows(&grid);
            let decoded = by_gptq(&grid, &all, &hessian);
            for (row, decoded) in all.chunks(COLUMNS).zip(decoded.chunks(COLUMNS)) {
                let of_best = loss(row, &by_best(&grid, row), &hessian);
                let own = loss(row, decoded, &hessian);
                assert!(own < of_best, "{layout:?} {dtype}: {own} against {of_best}");
                total += own;
                total_of_best += of_best;
            }
            assert!(total < 0.6 * total_of_best, "{layout:?} {dtype}: {total} {total_of_best}");
        }
    }
}

#[test]
fn unrelated_inputs_leave_what_best_finds_or_better() {
    let hessian = identity();
    for layout in [Q3, Q4] {
        let grid = grid(layout, Dtype::Float16);
        let all = rows(&grid);
        let decoded = by_gptq(&grid, &all, &hessian);
        for (row, decoded) in all.chunks(COLUMNS).zip(decoded.chunks(COLUMNS)) {
            let (own, of_best) =
                (loss(row, decoded, &hessian), loss(row, &by_best(&grid, row), &hessian));
            assert!(own <= of_best * 1.000_001, "{own} against {of_best}");
            assert!(own > 0.95 * of_best, "{own}: nothing is that far from the best");
        }
    }
}

#[test]
fn a_row_does_not_see_its_neighbours() {
    let (grid, hessian) = (grid(Q4, Dtype::Float16), correlated());
    let all = rows(&grid);
    let together = by_gptq(&grid, &all, &hessian);
    for (row, expected) in all.chunks(COLUMNS).zip(together.chunks(COLUMNS)) {
        assert_eq!(by_gptq(&grid, row, &hessian), expected);
    }
}

#[test]
fn columns_that_the_text_never_moves_are_kept() {
    let mut inputs = Distribution::Gaussian.values(40 * COLUMNS);
    inputs.iter_mut().skip(7).step_by(COLUMNS).for_each(|x| *x = 0.0);
    let (grid, hessian) = (grid(Q4, Dtype::Float16), hessian(&inputs));
    let row = &rows(&grid)[..COLUMNS];
    let decoded = by_gptq(&grid, row, &hessian);
    let largest = row[..32].iter().fold(0f32, |max, w| max.max(w.abs()));
    assert!((decoded[7] - row[7]).abs() <= largest / 7.0 / 2.0, "{} {}", decoded[7], row[7]);
}

#[test]
fn sums_that_say_nothing_are_refused() {
    assert!(Feedback::of(&Hessian::new(COLUMNS), Q4).is_none());
    let mut inputs = Distribution::Gaussian.values(COLUMNS);
    inputs[3] = f32::NAN;
    assert!(Feedback::of(&hessian(&inputs), Q4).is_none());
    inputs[3] = f32::INFINITY;
    assert!(Feedback::of(&hessian(&inputs), Q4).is_none());
    // Fewer tokens than columns leave directions of no weight at all, which damping fills.
    inputs[3] = 1.0;
    assert!(Feedback::of(&hessian(&inputs), Q4).is_some());
}

#[test]
fn a_row_that_is_not_finite_spoils_no_other() {
    let (grid, hessian) = (grid(Q4, Dtype::Float16), correlated());
    let all = rows(&grid);
    let mut odd = all.clone();
    odd[COLUMNS + 5] = f32::NAN;
    odd[2 * COLUMNS + 9] = f32::INFINITY;
    let (expected, found) = (by_gptq(&grid, &all, &hessian), by_gptq(&grid, &odd, &hessian));
    assert_eq!(found[..COLUMNS], expected[..COLUMNS]);
    assert_eq!(found[3 * COLUMNS..], expected[3 * COLUMNS..]);
    assert!(found[COLUMNS + 32..3 * COLUMNS].iter().filter(|w| w.is_finite()).count() > COLUMNS);
}
