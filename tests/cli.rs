//! What the commands print, as snapshots: paths, hashes and times are masked.

use std::process::Stdio;

use insta::assert_snapshot;

use crate::packlight;
use crate::support::{converted, copy, edit_json, fixture, packlight_reading, repo};
use serde_json::json;

/// Hides what differs between machines and versions.
fn masked(text: &str) -> String {
    let mut out = String::new();
    for word in text.split_inclusive(|c: char| c.is_whitespace() || "`,\"".contains(c)) {
        let core = word.trim_end_matches(|c: char| c.is_whitespace() || "`,\":".contains(c));
        let tail = &word[core.len()..];
        let hash = core.len() == 64 && core.bytes().all(|b| b.is_ascii_hexdigit());
        let path = core.starts_with('/') && core.len() > 1;
        out += if hash {
            "HASH"
        } else if path {
            "PATH"
        } else {
            core
        };
        out += tail;
    }
    out
}

#[test]
fn dry_run_prints_the_whole_plan() {
    let checkpoint = fixture("llama_untied");
    let ran = packlight!("convert", checkpoint, "--dry-run", "--codes", "mlc");
    assert_snapshot!("dry_run_warnings", masked(&ran.stderr));
    assert_snapshot!("dry_run", masked(&ran.ok()));
}

/// Row 26 of the behaviours: a bundle holds the text model only, and the plan says of each other tensor that it is left out.
#[test]
fn dry_run_lists_what_belongs_to_other_modalities() {
    for name in ["gemma3_mm", "gemma4_mm"] {
        let checkpoint = fixture(name);
        let index = fs_err::read(checkpoint.join("model.safetensors.index.json")).unwrap();
        let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
        let tensors = index["weight_map"].as_object().unwrap().keys();
        let plan = packlight!("convert", checkpoint, "--dry-run").ok();
        let others: Vec<_> = tensors.filter(|name| !name.contains("language_model")).collect();
        assert!(others.len() > 10, "{name} has a vision tower");
        for tensor in others {
            let line = plan.lines().find(|line| line.starts_with(&format!("skipped {tensor}: ")));
            let line = line.unwrap_or_else(|| panic!("{name} does not list {tensor}"));
            assert!(line.ends_with("bundles hold text models"), "{line}");
        }
    }
}

/// Row 22 of the behaviours: beyond the context nothing is computed, and the error says so.
#[test]
fn past_the_context_is_an_error() {
    let (_folder, bundle) = converted(&fixture("qwen2"));
    let ids = vec!["5"; 510].join(",");
    let within = packlight!("run", bundle, "--tokens", ids, "-n", "2", "--device", "cpu", "--json");
    assert_eq!(within.json()["tokens"].as_array().unwrap().len(), 2);
    let error = packlight!("run", bundle, "--tokens", ids, "-n", "3", "--device", "cpu").fails(2);
    assert!(error.contains("do not fit the model's context of 512"), "{error}");
    assert!(error.contains("hint: shorten the prompt or lower -n"), "{error}");
}

#[test]
fn convert_and_verify_say_what_they_did() {
    let (_folder, bundle) = converted(&repo("demo"));
    let verified = packlight!("verify", bundle, "--all").ok();
    assert_snapshot!("verify", masked(&verified));
}

#[test]
fn inspect_prints_the_plan_of_a_model() {
    // The plan of each architecture: whatever changes here changes what is computed.
    for name in ["lfm2", "llama_untied", "mistral", "qwen2", "qwen3", "qwen3_moe"] {
        let text = packlight!("inspect", fixture(name)).ok();
        assert_snapshot!(format!("plan_{name}"), masked(&text));
    }
}

#[test]
fn inspect_reads_bundles_too() {
    let (_folder, bundle) = converted(&fixture("qwen3"));
    let text = packlight!("inspect", bundle).ok();
    let head: String =
        text.lines().take_while(|line| *line != "plan").map(|line| format!("{line}\n")).collect();
    assert_snapshot!("inspect_bundle", masked(&head));
    let json = packlight!("inspect", bundle, "--json").json();
    assert_eq!(json["manifest"]["model"]["architecture"], "qwen3");
    assert_eq!(json["manifest"]["requires"]["shader_f16"], false);
}

/// A reader that has seen enough is no reason to panic.
#[test]
fn output_may_be_cut_short() {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_packlight"));
    command.arg("inspect").arg(fixture("qwen3"));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

#[test]
fn errors_say_what_where_why_and_hint() {
    let checkpoint = copy(&fixture("llama"));
    edit_json(&checkpoint.path().join("config.json"), |config| {
        config["logit_wobble"] = json!(0.5);
        config["rope_scaling"]["wobble"] = json!(1);
    });
    let rope = packlight!("convert", checkpoint.path(), "--dry-run").fails(2);
    edit_json(&checkpoint.path().join("config.json"), |config| {
        config["rope_scaling"] = json!(null);
    });
    let unread = packlight!("convert", checkpoint.path(), "--dry-run").fails(2);
    edit_json(&checkpoint.path().join("config.json"), |config| {
        config["model_type"] = json!("llama7");
    });
    let unknown = packlight!("convert", checkpoint.path(), "--dry-run").fails(2);
    assert_snapshot!("errors", format!("{rope}{unread}{unknown}"));
}

/// What a conversation says beside its answers, and what a plain MLC bundle is said to be.
#[test]
fn conversations_and_plain_bundles_are_explained() {
    let (_folder, bundle) = converted(&repo("demo"));
    let talk = "Hi\nWhat is the capital of France?\nHi\n/clear\nHi\n";
    let folder = bundle.to_str().unwrap();
    let chat = ["run", folder, "--chat", "--device", "cpu", "--context", "40"];
    let ran = packlight_reading(chat, talk);
    assert_snapshot!("chat", format!("{}--\n{}", ran.stdout, ran.stderr));
    let greedy = ["run", folder, "-p", "Hi", "-n", "0", "--device", "cpu", "--top-k", "5"];
    let errors = [
        packlight_reading(greedy, "").stderr,
        packlight!("run", bundle, "-p", "Hi", "--min-p", "2").fails(2),
        packlight!("run", bundle, "-p", "Hi", "--repetition-penalty", "0").fails(2),
        packlight!("run", bundle, "-p", " ").fails(2),
        packlight!("run", bundle, "-p", "Hi", "--context", "5000").fails(2),
        packlight!("run", bundle, "--chat", "-n", "0").fails(2),
    ];
    assert_snapshot!("run_errors", errors.concat());

    let (_folder, bundle) = converted(&fixture("qwen2"));
    fs_err::remove_file(bundle.join("packlight.json")).unwrap();
    let text = packlight!("inspect", bundle).ok();
    let head: String =
        text.lines().take_while(|line| *line != "plan").map(|line| format!("{line}\n")).collect();
    assert_snapshot!("inspect_plain", masked(&head));
    assert_snapshot!("verify_plain", masked(&packlight!("verify", bundle).ok()));
}
