//! `best` on groups of every kind, against `mlc` and against what the layout can hold.

use packlight_formats::Dtype;
use packlight_formats::quant::float::{from_stored_bits, round_bf16, round_to, stored_bits};
use packlight_formats::quant::{Codes, Grid, Grouped, Rounding};
use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore as _, SeedableRng as _};

const Q3: Grouped = Grouped::mlc(3, 40);
const Q4: Grouped = Grouped::mlc(4, 32);
const Q8: Grouped = Grouped::mlc(8, 32);
const DTYPES: [Dtype; 3] = [Dtype::Float16, Dtype::Bfloat16, Dtype::Float32];

/// The stored scale of a group and what is restored with it.
fn coded(codes: &str, layout: Grouped, dtype: Dtype, group: &[f32]) -> (f32, Vec<f32>) {
    let mut words = vec![0; layout.words_per_group() as usize];
    let mut scale = [0.0];
    let grid = Grid { layout, dtype, rounding: Rounding::Even };
    grid.encode_rows(
        group,
        group.len(),
        Codes::find(codes).expect("a chooser"),
        &mut words,
        &mut scale,
    );
    let stored = from_stored_bits(dtype, stored_bits(dtype, scale[0]));
    let mut decoded = vec![0.0; group.len()];
    layout.decode_row(&words, &[stored], &mut decoded);
    (stored, decoded)
}

fn squared_error(group: &[f32], decoded: &[f32]) -> f64 {
    group.iter().zip(decoded).map(|(&w, &d)| (f64::from(w) - f64::from(d)).powi(2)).sum()
}

fn relative_error(group: &[f32], decoded: &[f32]) -> f64 {
    (squared_error(group, decoded) / squared_error(group, &vec![0.0; group.len()])).sqrt()
}

/// What `best` restores of values rounded to the dtype, and those.
fn best(layout: Grouped, dtype: Dtype, group: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let group: Vec<f32> = group.iter().map(|&w| round_to(dtype, w)).collect();
    let (scale, decoded) = coded("best", layout, dtype, &group);
    assert!(scale.is_finite(), "{scale}");
    (group, decoded)
}

/// Any finite value, and often one of ordinary size, zero or alone of its size.
fn weight() -> impl Strategy<Value = f32> {
    prop_oneof![
        4 => -0.1f32..0.1,
        1 => Just(0.0),
        1 => -30.0f32..30.0,
        1 => -1e-6f32..1e-6,
        1 => any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |w| w.is_finite()),
    ]
}

fn group() -> impl Strategy<Value = Vec<f32>> {
    prop_oneof![
        prop::collection::vec(weight(), 1..=40),
        prop::collection::vec(-1f32..1.0, 32),
        // Of one size, whichever it is.
        (any::<u8>(), prop::collection::vec(-1f32..1.0, 32)).prop_map(|(e, group)| {
            group
                .into_iter()
                .map(|w| w * f32::from_bits(u32::from(e.clamp(1, 254)) << 23))
                .collect()
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn never_worse_than_mlc(group in group()) {
        for layout in [Q3, Q4, Q8] {
            for dtype in DTYPES {
                let group: Vec<f32> = group.iter().take(layout.group as usize).map(|&w| round_to(dtype, w)).collect();
                if group.iter().any(|w| !w.is_finite()) {
                    continue;
                }
                let (scale, decoded) = coded("best", layout, dtype, &group);
                let (_, of_mlc) = coded("mlc", layout, dtype, &group);
                prop_assert!(scale.is_finite());
                let (found, bound) = (squared_error(&group, &decoded), squared_error(&group, &of_mlc));
                // Errors are compared in f32.
                prop_assert!(found <= bound * (1.0 + 1e-5), "{dtype} {layout:?}: {found:e} > {bound:e}");
            }
        }
    }

    #[test]
    fn a_constant_is_kept(w in prop_oneof![1e-3f32..100.0, -100.0f32..-1e-3]) {
        for layout in [Q3, Q4, Q8] {
            for dtype in DTYPES {
                let (group, decoded) = best(layout, dtype, &[w; 32]);
                prop_assert!(relative_error(&group, &decoded) <= 1.0 / 256.0);
            }
        }
    }
}

/// What training for GGUF's Q4_0 leaves in a bfloat16 checkpoint: `d (q - 8)` with a `d` for every group.
#[test]
fn a_lattice_survives() {
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let group = |rng: &mut ChaCha8Rng| -> Vec<f32> {
        let d = 0.01 * (1.0 + rng.next_u32() as f32 / u32::MAX as f32);
        // Some groups use few of the sixteen levels.
        let levels = 1 + rng.next_u32() % 16;
        (0..32).map(|_| round_bf16(d * ((rng.next_u32() % levels) as f32 - 8.0))).collect()
    };
    let groups: Vec<Vec<f32>> = (0..2000).map(|_| group(&mut rng)).collect();
    for dtype in DTYPES {
        let error = |codes| {
            let decoded: Vec<f32> =
                groups.iter().flat_map(|group| coded(codes, Q4, dtype, group).1).collect();
            relative_error(&groups.concat(), &decoded)
        };
        assert!(error("best") <= 0.003, "{dtype}: {}", error("best"));
        assert!(error("mlc") > 0.04, "{dtype}: {}", error("mlc"));
    }
}

/// Rounded up to bfloat16, a quarter of this is a scale whose largest multiple overflows.
#[test]
fn the_largest_values_stay_finite() {
    let largest = 3.398_894_4e38;
    for layout in [Q3, Q4, Q8] {
        let (_, decoded) = coded("best", layout, Dtype::Float32, &[largest, -0.6 * largest]);
        assert!(decoded.iter().all(|w| w.is_finite()), "{layout:?}: {decoded:?}");
    }
}

#[test]
fn zeros_are_kept() {
    for dtype in DTYPES {
        let (_, decoded) = best(Q4, dtype, &[0.0; 32]);
        assert_eq!(decoded, [0.0; 32]);
    }
}

#[test]
fn subnormals_are_kept_where_mlcs_scale_underflows() {
    let step = 2f32.powi(-24);
    let group: Vec<f32> = (0..32).map(|i| step * ((i % 5) as f32 - 1.0)).collect();
    let (group, decoded) = best(Q4, Dtype::Float16, &group);
    assert_eq!(decoded, group);
    assert_ne!(coded("mlc", Q4, Dtype::Float16, &group).1, group);
}

#[test]
fn an_outlier_takes_the_longer_side() {
    for outlier in [8.0, -8.0] {
        let mut group: Vec<f32> =
            (0..32).map(|i| ((i % 15) as f32 - 7.0) * outlier / -8.0).collect();
        group[5] = outlier;
        assert_eq!(best(Q4, Dtype::Float16, &group), (group.clone(), group));
    }
}

#[test]
fn groups_that_are_not_finite_follow_mlc() {
    for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut group = [0.5; 32];
        group[7] = odd;
        let [a, b] = ["best", "mlc"].map(|codes| coded(codes, Q4, Dtype::Float16, &group));
        assert_eq!(a.0.to_bits(), b.0.to_bits());
        let bits = |values: &[f32]| {
            values.iter().map(|v| v.is_nan() || v.is_infinite()).collect::<Vec<_>>()
        };
        assert_eq!(bits(&a.1), bits(&b.1));
    }
}
