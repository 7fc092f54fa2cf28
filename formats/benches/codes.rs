//! Speed of the code choosers. Items are weights.

#![expect(clippy::cast_possible_truncation, reason = "a row is short")]

#[path = "../tests/matrices/mod.rs"]
mod matrices;

use divan::Bencher;
use divan::counter::ItemsCount;
use matrices::Distribution;
use packlight_formats::quant::float::round_to;
use packlight_formats::quant::{Codes, Grid, Rounding, Scheme};

const COLUMNS: usize = 2048;
const ROWS: usize = 64;
/// One of each arithmetic; the others share theirs.
const SCHEMES: [&str; 4] = ["q4f16_1", "q4f32_1", "q4bf16_1", "q3f16_1"];

fn main() {
    divan::main();
}

#[divan::bench(args = SCHEMES)]
fn mlc(bencher: Bencher<'_, '_>, scheme: &str) {
    encode(bencher, "mlc", scheme, Distribution::Gaussian);
}

#[divan::bench(args = SCHEMES)]
fn best(bencher: Bencher<'_, '_>, scheme: &str) {
    encode(bencher, "best", scheme, Distribution::Gaussian);
}

#[divan::bench(args = SCHEMES)]
fn best_student_t(bencher: Bencher<'_, '_>, scheme: &str) {
    encode(bencher, "best", scheme, Distribution::StudentT4);
}

fn encode(bencher: Bencher<'_, '_>, codes: &str, scheme: &str, distribution: Distribution) {
    let (Some(codes), Some(scheme)) = (Codes::find(codes), Scheme::find(scheme)) else { return };
    let Some(layout) = scheme.grouped else { return };
    let grid = Grid { layout, dtype: scheme.dtype, rounding: Rounding::Even };
    let values = distribution.values(ROWS * COLUMNS);
    let values: Vec<f32> = values.into_iter().map(|v| round_to(grid.dtype, v)).collect();
    let mut words = vec![0; ROWS * layout.words_per_row(COLUMNS as u64) as usize];
    let mut scales = vec![0.0; ROWS * layout.groups_per_row(COLUMNS as u64) as usize];
    bencher.counter(ItemsCount::new(values.len())).bench_local(|| {
        grid.encode_rows(&values, COLUMNS, codes, &mut words, &mut scales);
        divan::black_box((&words, &scales));
    });
}
