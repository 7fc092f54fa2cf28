//! `verify --run` and `verify --against` on bundles that are as they should be.

use serde_json::Value;
use tempfile::TempDir;

use crate::packlight;
use crate::support::{converted, fixture, gpu, repo};

/// By `tests/make/nll.py demo cli/evaluation.txt 8`.
const NLL_OF_DEMO: f64 = 1.153_957;

#[track_caller]
fn outcome<'a>(report: &'a Value, name: &str) -> &'a Value {
    let checks = report["checks"].as_array().unwrap();
    let found = checks.iter().find(|check| check["name"] == name);
    &found.unwrap_or_else(|| panic!("no check `{name}` in {checks:?}"))["outcome"]
}

#[test]
fn a_device_computes_what_the_weights_say() {
    if !gpu() {
        return;
    }
    let (_folder, bundle) = converted(&repo("demo"));
    let file = bundle.with_file_name("report.json");
    let text = packlight!("verify", bundle, "--run", "--trace-steps", "--report", file).ok();
    assert!(
        text.contains("Hello! How can I help you today?") && text.contains("tokens/s"),
        "{text}"
    );
    let report: Value = serde_json::from_slice(&fs_err::read(file).unwrap()).unwrap();
    assert_eq!(report["ok"], true);
    let run = &report["run"];
    for name in [
        "device against reference",
        "negative log likelihood",
        "single tokens against many",
        "greedy tokens",
        "every step",
    ] {
        assert_eq!(*outcome(&report, name), "ok");
    }
    assert_eq!(report["generator"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(report["sha256"].as_str().unwrap().len(), 64);
    assert!(run["adapter"]["driver"].is_string() && run["caps"]["binding_bytes"].is_u64());
    // Layers, as calls of many tokens go through them.
    let layers = ["attend tiles", "turn software"].map(|name| run["kernels"][name].as_u64());
    assert_eq!(layers.into_iter().flatten().sum::<u64>(), 4, "{}", run["kernels"]);
    for time in ["load_s", "prefill_tokens_per_s", "decode_tokens_per_s", "decode_bytes_per_s"] {
        assert!(run["times"][time].as_f64().unwrap() > 0.0, "{time}");
    }
    let prompts = run["prompts"].as_array().unwrap();
    assert!(prompts.len() >= 4 && prompts.iter().all(|prompt| prompt["first_wrong"].is_null()));
    assert_eq!(prompts[1]["answer"], "The capital of France is Paris.");
    assert!(run["device_against_reference"]["Mean KLD"]["value"].as_f64().unwrap() < 1e-5);
    assert_eq!(run["trace"]["steps"].as_array().unwrap()[0]["place"], "embedding");
}

/// A sliding window, no tokenizer, and layers of more than one kind.
#[test]
fn models_without_a_tokenizer_are_run_on_noise() {
    for name in ["gemma3", "gemma4"] {
        let (_folder, bundle) = converted(&fixture(name));
        let device = if gpu() { "gpu" } else { "cpu" };
        let report = packlight!("verify", bundle, "--run", "--device", device, "--json").json();
        assert_eq!(report["ok"], true, "{report}");
        assert!(report["run"]["text"].as_str().unwrap().contains("no tokenizer"));
        assert_eq!(*outcome(&report, "sliding window"), "ok");
    }
}

/// LongRoPE turns all positions of a text by other factors once it has outgrown the original context, here 64. What a device
/// says while it grows is judged as it was said.
#[test]
fn an_answer_may_outgrow_its_rotary_tables() {
    if !gpu() {
        return;
    }
    let (_folder, bundle) = converted(&fixture("phi3"));
    let report = packlight!("verify", bundle, "--run", "--json").json();
    assert_eq!(report["ok"], true, "{report}");
    let prompts = report["run"]["prompts"].as_array().unwrap();
    assert!(prompts.iter().all(|prompt| prompt["first_wrong"].is_null()), "{report}");
}

#[test]
fn without_an_adapter_a_run_fails_unless_the_reference_will_do() {
    let (_folder, bundle) = converted(&fixture("llama"));
    let run = |device: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_packlight"));
        // No Vulkan driver is found in an empty list of them.
        command.env("VK_DRIVER_FILES", "/nonexistent").env("VK_ICD_FILENAMES", "/nonexistent");
        command.args(["verify", bundle.to_str().unwrap(), "--run", "--json", "--device", device]);
        let output = command.output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), report)
    };
    let (code, report) = run("auto");
    assert_eq!((code, outcome(&report, "adapter").as_str()), (Some(1), Some("failed")));
    assert!(report["checks"].to_string().contains("no WebGPU adapter was found"), "{report}");
    let (code, report) = run("cpu");
    assert_eq!((code, report["ok"].as_bool()), (Some(0), Some(true)));
    assert_eq!(*outcome(&report, "device against reference"), "note");
    assert_eq!(*outcome(&report, "single tokens against many"), "ok");
}

/// The reference predicts a text as transformers does, and a bundle that loses nothing predicts it as the checkpoint.
#[test]
fn predictions_are_those_of_transformers() {
    let folder = TempDir::new().unwrap();
    let bundle = folder.path().join("bundle");
    packlight!("convert", repo("demo"), "-o", bundle, "--scheme", "q0bf16").ok();
    let report = packlight!(
        "verify",
        bundle,
        "--against",
        repo("demo"),
        "--windows",
        "8",
        "--device",
        "cpu",
        "--json"
    )
    .json();
    let against = &report["against"];
    let nll = |i: usize| against["nll"][i].as_f64().unwrap();
    assert!((nll(0) - NLL_OF_DEMO).abs() < 1e-3, "{}", nll(0));
    assert!((nll(1) - nll(0)).abs() < 1e-6);
    assert!(against["figures"]["Mean KLD"]["value"].as_f64().unwrap().abs() < 1e-9);
    assert_eq!(against["figures"]["Same top p"]["value"], 1.0);
    assert_eq!(against["greedy_prefix"], against["greedy_tokens"]);
    assert_eq!(*outcome(&report, "unquantised tensors"), "ok");
}

/// The same of weights that are no plain matrices: tables on the host, kernels of convolutions, stacks of experts.
#[test]
fn what_loses_nothing_costs_nothing() {
    for name in ["gemma4", "lfm2", "qwen3_moe"] {
        let folder = TempDir::new().unwrap();
        let (bundle, checkpoint) = (folder.path().join("bundle"), fixture(name));
        packlight!("convert", checkpoint, "-o", bundle, "--scheme", "q0bf16").ok();
        let mut args = vec!["verify", bundle.to_str().unwrap(), "--against"];
        args.extend([checkpoint.to_str().unwrap(), "--windows", "2", "--context", "48"]);
        args.extend(["--device", "cpu", "--json"]);
        let report = crate::support::packlight(args).json();
        let kld = report["against"]["figures"]["Mean KLD"]["value"].as_f64().unwrap();
        assert!(kld.abs() < 1e-9, "{name}: {kld}");
    }
}

#[test]
fn texts_that_cannot_be_used_are_refused() {
    let (_folder, bundle) = converted(&repo("demo"));
    let file = bundle.with_file_name("text");
    let verify = |bundle: &std::path::Path| {
        packlight!("verify", bundle, "--run", "--device", "cpu", "--text", file).fails(2)
    };
    assert!(verify(&bundle).contains("hint: "), "a missing file");
    fs_err::write(&file, [0xFF]).unwrap();
    assert!(verify(&bundle).contains("not UTF-8"));
    fs_err::write(&file, "").unwrap();
    assert!(verify(&bundle).contains("nothing to predict"));
    fs_err::write(&file, "some text").unwrap();
    let (_other, bare) = converted(&fixture("llama"));
    assert!(verify(&bare).contains("no tokenizer"));
}
