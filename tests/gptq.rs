//! `--codes gptq`: from text to a bundle that still answers.

use crate::packlight;
use crate::support::{copy, fixture, repo};
use serde_json::Value;
use tempfile::TempDir;

/// Some of what the demo model was trained on the like of.
const TEXT: &str = "What is the capital of Italy? The capital of Italy is Rome. \
    Returns the number of elements in the vector, also referred to as its length. \
    A `String` is a UTF-8 encoded, growable string. To borrow it, take a reference to it. ";

/// Codes wait in the output folder, the one place that must take files: here its parent does not.
#[test]
#[cfg(target_os = "linux")]
fn only_the_output_folder_is_written_to() {
    let folder = TempDir::new().unwrap();
    let script = r#"
        mount -t tmpfs none "$1" && mkdir "$1/bundle" && mount -t tmpfs none "$1/bundle" || exit 77
        mount -o remount,ro "$1" || exit 77
        "$0" convert "$2" -o "$1/bundle" --codes gptq --calibration "$3"
    "#;
    let mut command = std::process::Command::new("unshare");
    command.args(["-Urm", "sh", "-c", script, env!("CARGO_BIN_EXE_packlight")]);
    command.arg(folder.path()).arg(repo("demo")).arg(repo("tests/fixtures/README.md"));
    let Ok(output) = command.output() else { return eprintln!("SKIPPED: no `unshare` here") };
    let said = String::from_utf8(output.stderr).unwrap();
    if output.status.code() == Some(77) || said.contains("unshare: ") {
        return eprintln!("SKIPPED: no disk can be mounted here: {said}");
    }
    assert!(output.status.success(), "{said}");
}

#[test]
fn a_calibrated_bundle_answers_and_threads_do_not_change_it() {
    let folder = TempDir::new().unwrap();
    let text = folder.path().join("calibration.txt");
    fs_err::write(&text, TEXT.repeat(12)).unwrap();
    let bundles = ["1", "2"].map(|threads| {
        let bundle = folder.path().join(threads);
        let args = ["--codes", "gptq", "--threads", threads];
        let (demo, file) = (repo("demo"), text.clone());
        packlight!(
            "convert",
            demo,
            "-o",
            bundle,
            "--calibration",
            file,
            args[0],
            args[1],
            args[2],
            args[3]
        )
        .ok();
        bundle
    });
    assert!(packlight!("verify", bundles[0], "--all").ok().starts_with("ok"));
    let [first, second] = bundles
        .each_ref()
        .map(|bundle| fs_err::read_to_string(bundle.join("packlight.json")).unwrap());
    assert!(first == second, "the manifest, which has every file's hash, depends on threads");

    let manifest: Value = serde_json::from_str(&first).unwrap();
    assert_eq!(manifest["codes"], "gptq");
    assert_eq!(manifest["calibration_sha256"].as_str().unwrap().len(), 64);
    let prompt = "What is the capital of France?";
    let answer = packlight!("run", bundles[0], "-p", prompt, "--device", "cpu", "--json").json();
    assert_eq!(answer["text"], "The capital of France is Paris.");
    // Nothing is left beside the bundles.
    assert_eq!(fs_err::read_dir(folder.path()).unwrap().count(), 3);
}

#[test]
fn transposed_and_three_bit_schemes_are_calibrated_too() {
    let folder = TempDir::new().unwrap();
    let text = folder.path().join("calibration.txt");
    fs_err::write(&text, TEXT).unwrap();
    for scheme in ["q3f16_0", "q4f32_1"] {
        let bundle = folder.path().join(scheme);
        packlight!(
            "convert",
            repo("demo"),
            "-o",
            bundle,
            "--scheme",
            scheme,
            "--codes",
            "gptq",
            "--calibration",
            text
        )
        .ok();
        assert!(packlight!("verify", bundle, "--all").ok().starts_with("ok"));
    }
}

#[test]
fn a_text_that_cannot_be_used_is_refused_before_anything_is_written() {
    let folder = TempDir::new().unwrap();
    let (bundle, file) = (folder.path().join("bundle"), folder.path().join("text"));
    let convert = |checkpoint, codes: &str| {
        packlight!("convert", checkpoint, "-o", bundle, "--codes", codes, "--calibration", file)
            .fails(2)
    };
    assert!(convert(repo("demo"), "gptq").contains("calibration text"), "a missing file");
    fs_err::write(&file, "").unwrap();
    assert!(convert(repo("demo"), "gptq").contains("is empty"));
    fs_err::write(&file, [0xFF]).unwrap();
    assert!(convert(repo("demo"), "gptq").contains("not UTF-8"));
    fs_err::write(&file, TEXT).unwrap();
    assert!(convert(fixture("llama"), "gptq").contains("hint: add the file"));
    assert!(convert(repo("demo"), "best").contains("does not apply"));
    let odd = copy(&repo("demo"));
    fs_err::write(odd.path().join("tokenizer.json"), "{}").unwrap();
    assert!(convert(odd.path().into(), "gptq").contains("tokenizer.json"));
    assert!(!bundle.exists());
}
