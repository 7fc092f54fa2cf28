//! Bundles that are wrong in ways that no hash shows: their manifests were made right again. `verify --against` names
//! what is wrong with each.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::packlight;
use crate::support::{Ran, edit_json, edit_model, edit_record, fixture, rehash, repo};

const MATRIX: &str = "model.layers.1.mlp.down_proj";

/// A bundle of a checkpoint, spoilt.
struct Broken {
    checkpoint: PathBuf,
    bundle: PathBuf,
    _folder: TempDir,
}

impl Broken {
    fn new(checkpoint: PathBuf, codes: &[&str], spoil: impl FnOnce(&Path)) -> Self {
        let folder = TempDir::new().unwrap();
        let bundle = folder.path().join("bundle");
        let mut args =
            vec!["convert", checkpoint.to_str().unwrap(), "-o", bundle.to_str().unwrap()];
        args.extend(codes);
        crate::support::packlight(args).ok();
        spoil(&bundle);
        rehash(&bundle);
        // Nothing is wrong with its bytes any more.
        packlight!("verify", bundle, "--all").ok();
        Self { checkpoint, bundle, _folder: folder }
    }

    fn fixture(name: &str, spoil: impl FnOnce(&Path)) -> Self {
        Self::new(fixture(name), &["--codes", "best"], spoil)
    }

    fn verify(&self, more: &[&str]) -> Ran {
        let (bundle, checkpoint) =
            (self.bundle.to_str().unwrap(), self.checkpoint.to_str().unwrap());
        let mut args = vec!["verify", bundle, "--against", checkpoint, "--json"];
        args.extend(["--device", "cpu", "--windows", "2", "--context", "48"]);
        args.extend(more);
        crate::support::packlight(args)
    }

    /// The problems of the one check that fails.
    #[track_caller]
    fn caught_by(&self, check: &str, more: &[&str]) -> Vec<String> {
        let ran = self.verify(more);
        assert_eq!(ran.code, 1, "{}\n{}", ran.stdout, ran.stderr);
        let report: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(report["ok"], false);
        let failed = |check: &&Value| check["outcome"] == "failed";
        let checks: Vec<&Value> =
            report["checks"].as_array().unwrap().iter().filter(failed).collect();
        let found = checks.iter().find(|found| found["name"] == check);
        let found = found.unwrap_or_else(|| panic!("`{check}` has not failed: {checks:?}"));
        let problems = found["problems"].as_array().into_iter().flatten();
        problems.map(|problem| problem.as_str().unwrap().to_owned()).collect()
    }
}

#[track_caller]
fn says(problems: &[String], words: &[&str]) {
    for word in words {
        assert!(
            problems.iter().any(|problem| problem.contains(word)),
            "no `{word}` in {problems:?}"
        );
    }
}

/// Two elements of a record change places.
fn swap(bytes: &mut [u8], size: usize, a: usize, b: usize) {
    for i in 0..size {
        bytes.swap(a * size + i, b * size + i);
    }
}

/// Whole records do.
fn swap_records(bundle: &Path, a: &str, b: &str) {
    let mut held = Vec::new();
    edit_record(bundle, a, |bytes| held = bytes.to_vec());
    edit_record(bundle, b, |bytes| bytes.swap_with_slice(&mut held));
    edit_record(bundle, a, |bytes| bytes.copy_from_slice(&held));
}

#[test]
fn sound_bundles_hold() {
    for name in ["qwen3", "mistral", "gemma3"] {
        let report = Broken::fixture(name, |_| ()).verify(&[]).json();
        assert_eq!(report["ok"], true, "{report}");
        let checks = report["checks"].as_array().unwrap();
        assert!(checks.iter().all(|check| check["outcome"] == "ok"), "{checks:?}");
        assert!(report["against"]["figures"]["Mean KLD"]["value"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn one_flipped_code_is_named() {
    let broken = Broken::fixture("qwen3", |bundle| {
        // Row 3 of 64, word 2 of it, the fourth code: column 2 * 8 + 3.
        edit_record(bundle, &format!("{MATRIX}.q_weight"), |bytes| {
            let words_per_row = bytes.len() / 4 / 64;
            bytes[4 * (3 * words_per_row + 2) + 1] ^= 0x10;
        });
    });
    let problems = broken.caught_by("quantised tensors", &[]);
    assert_eq!(problems.len(), 1, "{problems:?}");
    says(&problems, &[MATRIX, "q_weight", "1 of", "row 3, column 19, whose code is"]);
}

#[test]
fn swapped_scales_are_named() {
    let within = Broken::fixture("qwen3", |bundle| {
        edit_record(bundle, &format!("{MATRIX}.q_scale"), |bytes| swap(bytes, 2, 5, 9));
    });
    let problems = within.caught_by("quantised tensors", &[]);
    says(&problems, &[MATRIX, "q_scale", "2 of", "the scale of the group from column"]);

    let between = Broken::fixture("qwen3", |bundle| {
        let other = MATRIX.replace(".1.", ".0.");
        swap_records(bundle, &format!("{MATRIX}.q_scale"), &format!("{other}.q_scale"));
    });
    let problems = between.caught_by("quantised tensors", &[]);
    assert_eq!(problems.len(), 2, "{problems:?}");
    says(&problems, &["layers.0.mlp.down_proj.q_scale", "layers.1.mlp.down_proj.q_scale"]);
}

#[test]
fn a_wrong_rope_base_is_named() {
    let broken = Broken::fixture("qwen3", |bundle| {
        edit_model(bundle, |model| model["ropes"][0]["theta"] = json!(500_000.0));
    });
    says(&broken.caught_by("description", &[]), &["model.ropes[0].theta is 500000"]);
}

#[test]
fn swapped_norms_of_queries_and_keys_are_named() {
    let [q, k] = ["q_norm", "k_norm"].map(|norm| format!("model.layers.1.self_attn.{norm}.weight"));
    let bytes = Broken::fixture("qwen3", |bundle| swap_records(bundle, &q, &k));
    let problems = bytes.caught_by("unquantised tensors", &[]);
    says(&problems, &[&q, &k]);

    let described = Broken::fixture("qwen3", |bundle| {
        edit_model(bundle, |model| {
            let attention = &mut model["layers"][1]["mixer"]["attention"];
            let held = attention["q_norm"].take();
            attention["q_norm"] = attention["k_norm"].take();
            attention["k_norm"] = held;
        });
    });
    says(
        &described.caught_by("description", &[]),
        &["model.layers[1].mixer.attention.q_norm.weight.name"],
    );
}

#[test]
fn a_missing_window_is_named() {
    let broken = Broken::fixture("mistral", |bundle| {
        edit_model(bundle, |model| {
            model["layers"][2]["mixer"]["attention"]["window"] = json!(null);
        });
    });
    says(
        &broken.caught_by("description", &[]),
        &["model.layers[2].mixer.attention.window is null", "16"],
    );
}

#[test]
fn what_is_no_number_fails() {
    let broken = Broken::fixture("qwen3", |bundle| {
        edit_record(bundle, "model.norm.weight", |bytes| bytes[..2].fill(0xFF));
    });
    says(
        &broken.caught_by("unquantised tensors", &[]),
        &["`model.norm.weight`: 1 of 64", "value 0"],
    );
    broken.caught_by("predictions are numbers", &[]);
}

/// Another checkpoint's weights are all wrong, and so are its files.
#[test]
fn another_checkpoint_is_not_the_one() {
    let mut broken = Broken::fixture("llama", |_| ());
    broken.checkpoint = fixture("llama_untied");
    let ran = broken.verify(&[]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    says(&broken.caught_by("description", &[]), &["model."]);
}

/// Codes that make up for each other's errors obey looser bounds; made again, they are compared bit for bit.
#[test]
fn calibrated_codes_are_held_to_bounds_or_made_again() {
    let folder = TempDir::new().unwrap();
    let text = folder.path().join("calibration.txt");
    fs_err::write(
        &text,
        "A vector is a growable array, and its length is never more than its capacity. ",
    )
    .unwrap();
    let text = text.to_str().unwrap();
    let convert = ["--codes", "gptq", "--calibration", text];
    let recalibrate = ["--recalibrate", "--calibration", text];

    let sound = Broken::new(repo("demo"), &convert, |_| ());
    assert_eq!(sound.verify(&[]).json()["ok"], true);
    let report = sound.verify(&recalibrate).json();
    let checks = report["checks"].as_array().unwrap();
    assert!(checks.iter().all(|check| check["outcome"] == "ok"), "{checks:?}");
    assert!(sound.verify(&["--recalibrate"]).fails(2).contains("another text"));

    let flipped = Broken::new(repo("demo"), &convert, |bundle| {
        edit_record(bundle, &format!("{MATRIX}.q_weight"), |bytes| bytes[100] ^= 1);
    });
    assert_eq!(flipped.verify(&[]).code, 0, "too little to be seen");
    says(&flipped.caught_by("quantised tensors", &recalibrate), &[MATRIX, "1 of", "whose code is"]);

    let swapped = Broken::new(repo("demo"), &convert, |bundle| {
        let other = MATRIX.replace(".1.", ".2.");
        for record in ["q_weight", "q_scale"] {
            swap_records(bundle, &format!("{MATRIX}.{record}"), &format!("{other}.{record}"));
        }
    });
    let problems = swapped.caught_by("errors within bounds", &[]);
    says(
        &problems,
        &["layers.1.mlp.down_proj.weight`: the whole matrix", "layers.2.mlp.down_proj"],
    );
}

/// A plain MLC bundle, or one by a chooser of another day, does not say how its codes were chosen. What comes so near
/// that it must be the way is held to every bit.
#[test]
fn codes_of_unknown_origin_are_recognised() {
    let unsigned = |bundle: &Path| fs_err::remove_file(bundle.join("packlight.json")).unwrap();
    let flip = |bundle: &Path| {
        edit_record(bundle, &format!("{MATRIX}.q_weight"), |bytes| bytes[8] ^= 1);
    };
    for rounding in ["even", "away"] {
        let convert = ["--codes", "mlc", "--rounding", rounding];
        let sound = Broken::new(fixture("qwen3"), &convert, unsigned);
        let report = sound.verify(&[]).json();
        let checks = report["checks"].as_array().unwrap();
        assert!(checks.iter().all(|check| check["outcome"] == "ok"), "{checks:?}");
        let flipped = Broken::new(fixture("qwen3"), &convert, |bundle| {
            flip(bundle);
            unsigned(bundle);
        });
        let problems = flipped.caught_by("quantised tensors", &[]);
        assert_eq!(problems.len(), 1, "{problems:?}");
        says(&problems, &[MATRIX, "whose code is"]);
    }
    let theirs = |bundle: &Path| {
        edit_json(&bundle.join("packlight.json"), |manifest| manifest["codes"] = json!("theirs"));
    };
    assert_eq!(Broken::fixture("qwen3", theirs).verify(&[]).json()["ok"], true);
    let flipped = Broken::fixture("qwen3", |bundle| {
        flip(bundle);
        theirs(bundle);
    });
    says(&flipped.caught_by("quantised tensors", &[]), &[MATRIX, "whose code is"]);
}
