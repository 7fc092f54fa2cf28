//! What the choosers are worth: relative RMS error of random matrices.

#![expect(clippy::cast_possible_truncation, reason = "a row is short")]

mod matrices;

use matrices::Distribution;
use packlight_formats::Dtype;
use packlight_formats::quant::float::{from_stored_bits, round_to, stored_bits};
use packlight_formats::quant::{Codes, Grid, Grouped, Order, Rounding, SCHEMES};

const ROWS: usize = 8192;
const COLUMNS: usize = 2048;

/// `sqrt(sum (w - decoded)^2 / sum w^2)`, with scales as they are stored.
fn relative_error(values: &[f32], layout: Grouped, dtype: Dtype, codes: &Codes) -> f64 {
    let grid = Grid { layout, dtype, rounding: Rounding::Even };
    let mut words = vec![0; layout.words_per_row(COLUMNS as u64) as usize];
    let mut scales = vec![0.0; layout.groups_per_row(COLUMNS as u64) as usize];
    let mut decoded = vec![0.0; COLUMNS];
    let (mut error, mut norm) = (0.0, 0.0);
    for original in values.chunks(COLUMNS) {
        let row: Vec<f32> = original.iter().map(|&w| round_to(dtype, w)).collect();
        grid.encode_rows(&row, row.len(), codes, &mut words, &mut scales);
        for scale in &mut scales {
            *scale = from_stored_bits(dtype, stored_bits(dtype, *scale));
        }
        layout.decode_row(&words, &scales, &mut decoded);
        for (w, d) in row.iter().zip(&decoded) {
            error += f64::from(w - d).powi(2);
            norm += f64::from(*w).powi(2);
        }
    }
    (error / norm).sqrt()
}

fn codes(name: &str) -> &'static Codes {
    Codes::find(name).expect("a chooser")
}

#[test]
fn best_comes_close_to_the_limit_of_the_layout() {
    let layout = Grouped::mlc(4, 32);
    // Measured 0.0809 and 0.1110; searching every scale gives 0.0808 and 0.1110.
    for (distribution, bound) in
        [(Distribution::Gaussian, 0.0812), (Distribution::StudentT4, 0.1115)]
    {
        let values = distribution.values(ROWS * COLUMNS);
        let error = relative_error(&values, layout, Dtype::Float16, codes("best"));
        assert!(error <= bound, "{distribution:?}: {error}");
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "the table")]
#[ignore = "prints the table of docs/quality.md"]
fn table() {
    let matrices = [Distribution::Gaussian, Distribution::StudentT4]
        .map(|distribution| distribution.values(ROWS * COLUMNS));
    println!("| scheme | codes | gaussian | student-t, 4 dof |\n|---|---|---|---|");
    for scheme in SCHEMES.iter().filter(|scheme| scheme.order == Order::Nk) {
        let Some(layout) = scheme.grouped else { continue };
        for name in ["mlc", "best"] {
            let [g, t] = matrices
                .each_ref()
                .map(|values| relative_error(values, layout, scheme.dtype, codes(name)));
            println!("| {} | {name} | {g:.5} | {t:.5} |", scheme.name);
        }
    }
}
