//! Bad input gets an error that names what is wrong and says what to do; nothing half-written gets a final name.

use std::path::Path;

use safetensors::tensor::Dtype;
use serde_json::json;
use tempfile::TempDir;

use crate::packlight;
use crate::support::{
    Tensor, contents, converted, copy, edit_json, edit_tensors, fixture, gpu, repo,
};

/// Converts a spoilt checkpoint and expects an error with exit 2, a hint, all of `words`, and no manifest.
#[track_caller]
fn refused(checkpoint: &Path, words: &[&str]) {
    let folder = TempDir::new().unwrap();
    let bundle = folder.path().join("bundle");
    let error = packlight!("convert", checkpoint, "-o", bundle).fails(2);
    for word in words {
        assert!(error.contains(word), "`{word}` is not in: {error}");
    }
    assert!(error.contains("hint: "), "no hint in: {error}");
    assert!(!bundle.join("packlight.json").exists() && !bundle.join("tensor-cache.json").exists());
}

#[test]
fn folders_that_are_no_checkpoint() {
    let empty = TempDir::new().unwrap();
    refused(&empty.path().join("nowhere"), &["nowhere", "not a folder"]);
    refused(empty.path(), &["config.json"]);

    fs_err::write(empty.path().join("adapter_config.json"), "{}").unwrap();
    refused(empty.path(), &["LoRA", "merge"]);
    fs_err::write(empty.path().join("model.gguf"), "GGUF").unwrap();
    refused(empty.path(), &["model.gguf", "GGUF"]);
    refused(&empty.path().join("model.gguf"), &["GGUF", "safetensors"]);

    let pickles = TempDir::new().unwrap();
    fs_err::write(pickles.path().join("config.json"), "{}").unwrap();
    refused(pickles.path(), &["model.safetensors"]);
    fs_err::write(pickles.path().join("pytorch_model.bin"), "").unwrap();
    refused(pickles.path(), &["pytorch_model.bin", "save_pretrained"]);
}

#[test]
fn configs_that_mean_something_else() {
    let spoilt = |edit: &dyn Fn(&mut serde_json::Value), words: &[&str]| {
        let checkpoint = copy(&fixture("llama"));
        edit_json(&checkpoint.path().join("config.json"), edit);
        let folder = TempDir::new().unwrap();
        let error =
            packlight!("convert", checkpoint.path(), "-o", folder.path().join("b")).fails(2);
        for word in words {
            assert!(error.contains(word), "`{word}` is not in: {error}");
        }
        assert!(error.contains("hint: "), "no hint in: {error}");
    };
    spoilt(
        &|c| c["model_type"] = json!("mamba"),
        &["mamba", "known architectures", "llama", "qwen3"],
    );
    spoilt(&|c| c["clever_trick"] = json!(3), &["--ignore-config-key clever_trick"]);
    spoilt(&|c| c["rope_scaling"]["beta"] = json!(1), &["rope_scaling.beta"]);
    spoilt(
        &|c| c["rope_scaling"]["rope_type"] = json!("spiral"),
        &["rope_scaling.rope_type", "spiral"],
    );
    spoilt(
        &|c| c["rope_scaling"]["rope_type"] = json!("dynamic"),
        &["dynamic", "max_position_embeddings"],
    );
    spoilt(
        &|c| c["quantization_config"] = json!({ "quant_method": "awq", "bits": 4 }),
        &["awq", "convert the checkpoint that it was quantised from"],
    );
    spoilt(&|c| c["hidden_act"] = json!("relu"), &["hidden_act", "relu", "silu"]);
    spoilt(&|c| c["hidden_size"] = json!("wide"), &["hidden_size", "wide"]);
    spoilt(&|c| c["num_key_value_heads"] = json!(3), &["4 attention heads", "3 key-value heads"]);
    spoilt(&|c| c["num_hidden_layers"] = json!(4_000_000_000_u32), &["layers"]);
    spoilt(&|c| c["head_dim"] = json!(4_000_000_000_u32), &["dimension"]);
    spoilt(
        &|c| c["architectures"] = json!(["Qwen2ForCausalLM"]),
        &["architectures", "Qwen2ForCausalLM"],
    );
    // An unknown class, or none, is no contradiction.
    let checkpoint = copy(&fixture("llama"));
    edit_json(&checkpoint.path().join("config.json"), |c| c["architectures"] = json!(["MyLlama"]));
    converted(checkpoint.path());
    // A null key says nothing.
    edit_json(&checkpoint.path().join("config.json"), |c| c["clever_trick"] = json!(null));
    converted(checkpoint.path());
}

#[test]
fn every_wrong_tensor_is_listed_at_once() {
    let checkpoint = copy(&fixture("llama"));
    edit_tensors(&checkpoint.path().join("model.safetensors"), |tensors| {
        tensors.retain(|tensor| tensor.name != "model.layers.1.mlp.up_proj.weight");
        let find = |tensors: &mut Vec<Tensor>, name: &str| {
            tensors.iter().position(|t| t.name == name).unwrap()
        };
        let norm = find(tensors, "model.norm.weight");
        (tensors[norm].shape, tensors[norm].bytes) = (vec![32], vec![0; 64]);
        let q = find(tensors, "model.layers.0.self_attn.q_proj.weight");
        (tensors[q].dtype, tensors[q].shape) = (Dtype::I16, tensors[q].shape.clone());
    });
    refused(
        checkpoint.path(),
        &[
            "`model.layers.1.mlp.up_proj.weight` is missing",
            "`model.layers.1.mlp.gate_up_proj.weight` is made from it",
            "`model.norm.weight` in `model.safetensors` is [32], but config.json makes it [64]",
            "`model.layers.0.self_attn.q_proj.weight` in `model.safetensors` is I16",
        ],
    );
}

#[test]
fn files_of_an_index_that_do_not_fit_it() {
    let checkpoint = copy(&fixture("qwen3"));
    fs_err::remove_file(checkpoint.path().join("model-00002-of-00003.safetensors")).unwrap();
    refused(checkpoint.path(), &["model-00002-of-00003.safetensors", "missing"]);

    let checkpoint = copy(&fixture("qwen3"));
    edit_json(&checkpoint.path().join("model.safetensors.index.json"), |index| {
        index["weight_map"]["model.norm.weight"] = json!("../../etc/passwd");
    });
    refused(checkpoint.path(), &["model.norm.weight", "etc/passwd", "not a file name"]);
}

#[test]
fn safetensors_that_lie() {
    let spoilt = |edit: &dyn Fn(&mut Vec<u8>), words: &[&str]| {
        let checkpoint = copy(&fixture("llama"));
        let path = checkpoint.path().join("model.safetensors");
        let mut bytes = fs_err::read(&path).unwrap();
        edit(&mut bytes);
        fs_err::write(&path, bytes).unwrap();
        refused(checkpoint.path(), words);
    };
    spoilt(&|bytes| bytes.truncate(300_000), &["model.safetensors", "ends at byte"]);
    spoilt(&|bytes| bytes.truncate(5), &["model.safetensors", "header"]);
    spoilt(&|bytes| bytes.clear(), &["model.safetensors"]);
    spoilt(&|bytes| bytes[..8].fill(0xFF), &["model.safetensors", "header"]);
    spoilt(&|bytes| bytes[8] = b'?', &["model.safetensors", "JSON"]);
    spoilt(&|bytes| bytes.extend([0; 16]), &["model.safetensors"]);
    // The second tensor starts where the first does.
    spoilt(
        &|bytes| {
            let size = usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
            let header = String::from_utf8(bytes[8..8 + size].to_vec()).unwrap();
            let second = header
                .match_indices("\"data_offsets\":[")
                .map(|(i, m)| i + m.len())
                .nth(1)
                .unwrap();
            let end = second + header[second..].find(',').unwrap();
            bytes[8 + second..8 + end].fill(b' ');
            bytes[8 + second] = b'0';
        },
        &["model.safetensors", "tensor `"],
    );
}

#[test]
fn weights_that_are_not_finite_are_named() {
    for (bits, what, hint) in [
        (0x7FC0_u16, "NaN", "damaged"),
        (0xFF80, "-inf", "damaged"),
        (0x7F00, "overflows float16", "--scheme q4bf16_1"),
    ] {
        let checkpoint = copy(&fixture("llama"));
        edit_tensors(&checkpoint.path().join("model.safetensors"), |tensors| {
            let tensor = tensors
                .iter_mut()
                .find(|t| t.name == "model.layers.2.self_attn.k_proj.weight")
                .unwrap();
            let at = 2 * (3 * 64 + 17);
            tensor.bytes[at..at + 2].copy_from_slice(&bits.to_le_bytes());
        });
        let tensor = "model.layers.2.self_attn.k_proj.weight";
        refused(checkpoint.path(), &[tensor, what, "[3, 17]", hint]);
        let folder = TempDir::new().unwrap();
        packlight!(
            "convert",
            checkpoint.path(),
            "-o",
            folder.path().join("b"),
            "--allow-non-finite"
        )
        .ok();
    }
}

#[test]
fn output_folders_with_something_in_them() {
    let folder = TempDir::new().unwrap();
    fs_err::write(folder.path().join("thesis.tex"), "years of work").unwrap();
    let error = packlight!("convert", fixture("llama"), "-o", folder.path()).fails(2);
    assert!(
        error.contains("not empty") && error.contains("thesis.tex") && error.contains("--force"),
        "{error}"
    );
    packlight!("convert", fixture("llama"), "-o", folder.path(), "--force").ok();
    assert_eq!(fs_err::read(folder.path().join("thesis.tex")).unwrap(), b"years of work");
    let problems = packlight!("verify", folder.path());
    assert!(problems.code == 1 && problems.stdout.contains("thesis.tex"), "{problems:?}");
    packlight!("verify", folder.path(), "--allow-extra").ok();
    // Neither is another checkpoint overwritten; what a bundle's own manifest names is.
    let other = copy(&repo("demo"));
    let before = contents(other.path());
    let error = packlight!("convert", repo("demo"), "-o", other.path(), "--force").fails(2);
    assert!(error.contains("tokenizer_config.json") && error.contains("hint: "), "{error}");
    assert!(contents(other.path()) == before);
    let (_plain, plain) = converted(&repo("demo"));
    fs_err::remove_file(plain.join("packlight.json")).unwrap();
    fs_err::remove_file(plain.join("generation_config.json")).unwrap();
    packlight!("convert", repo("demo"), "-o", plain, "--force").ok();
    let file = folder.path().join("thesis.tex");
    let error = packlight!("convert", fixture("llama"), "-o", file).fails(2);
    assert!(error.contains("is a file"), "{error}");
    // What the system says gets a hint, too.
    let error = packlight!("convert", fixture("llama"), "-o", file.join("bundle")).fails(2);
    assert!(error.contains("thesis.tex/bundle") && error.contains("hint: "), "{error}");
}

#[test]
fn a_flipped_bit_is_found_by_verify_and_refused_by_run() {
    let (_folder, bundle) = converted(&fixture("qwen2"));
    let shard = bundle.join("params_shard_0.bin");
    let mut bytes = fs_err::read(&shard).unwrap();
    bytes[70_001] ^= 4;
    fs_err::write(&shard, bytes).unwrap();
    let found = packlight!("verify", bundle);
    assert_eq!(found.code, 1);
    assert!(found.stdout.contains("`params_shard_0.bin` chunk 0"), "{}", found.stdout);
    let all = packlight!("verify", bundle, "--all", "--json");
    let report: serde_json::Value = serde_json::from_str(&all.stdout).unwrap();
    let kinds: Vec<&str> = report["problems"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| p["kind"].as_str().unwrap())
        .collect();
    assert_eq!((all.code, kinds), (1, vec!["wrong_chunk", "wrong_md5"]));
    for device in ["cpu", "auto"] {
        let error = packlight!("run", bundle, "--tokens", "1,2", "--device", device).fails(2);
        assert!(
            error.contains("`params_shard_0.bin` chunk 0") && error.contains("--no-verify"),
            "{error}"
        );
    }
    packlight!("run", bundle, "--tokens", "1,2", "-n", "1", "--no-verify", "--device", "cpu").ok();
}

/// Row 21 of the behaviours taken over from other runtimes, with `runner/src/gpu/tests/limits.rs`.
#[test]
fn truncated_and_missing_shards() {
    let (_folder, bundle) = converted(&fixture("qwen2"));
    let shard = bundle.join("params_shard_0.bin");
    let bytes = fs_err::read(&shard).unwrap();
    fs_err::write(&shard, &bytes[..bytes.len() - 8]).unwrap();
    let found = packlight!("verify", bundle);
    assert!(found.code == 1 && found.stdout.contains("`params_shard_0.bin` has"), "{found:?}");
    let error =
        packlight!("run", bundle, "--tokens", "1,2", "--no-verify", "--device", "cpu").fails(2);
    assert!(error.contains("params_shard_0.bin"), "{error}");
    fs_err::remove_file(&shard).unwrap();
    let found = packlight!("verify", bundle);
    assert!(
        found.code == 1 && found.stdout.contains("`params_shard_0.bin` is missing"),
        "{found:?}"
    );
    let error = packlight!("run", bundle, "--tokens", "1,2", "--device", "cpu").fails(2);
    assert!(error.contains("`params_shard_0.bin` is missing"), "{error}");
}

/// Row 6 of the behaviours taken over from other runtimes: manifests whose hashes were made right again, but which
/// contradict themselves or each other.
#[test]
fn manifests_that_lie() {
    let spoilt = |edit: &dyn Fn(&mut serde_json::Value), words: &[&str]| {
        let (_folder, bundle) = converted(&fixture("mistral"));
        edit_json(&bundle.join("tensor-cache.json"), edit);
        let lie = fs_err::read(bundle.join("tensor-cache.json")).unwrap();
        fs_err::write(bundle.join("ndarray-cache.json"), &lie).unwrap();
        edit_json(&bundle.join("packlight.json"), |manifest| {
            for file in manifest["files"].as_array_mut().unwrap() {
                if file["path"].as_str().unwrap().ends_with("-cache.json") {
                    file["bytes"] = json!(lie.len());
                    file["sha256"] = json!([packlight_formats::digest::sha256(&lie)]);
                }
            }
        });
        let found = packlight!("verify", bundle);
        assert_eq!(found.code, 1, "{found:?}");
        let error =
            packlight!("run", bundle, "--tokens", "1", "--device", "cpu", "--no-verify").fails(2);
        for word in words {
            assert!(found.stdout.contains(word), "`{word}` is not in: {}", found.stdout);
            assert!(error.contains(word), "`{word}` is not in: {error}");
        }
    };
    let record = |i: usize| format!("/records/0/records/{i}");
    spoilt(
        &|m| *m.pointer_mut(&(record(3) + "/byteOffset")).unwrap() = json!(u64::MAX),
        &["ends beyond its shard"],
    );
    spoilt(&|m| *m.pointer_mut(&(record(3) + "/byteOffset")).unwrap() = json!(0), &["overlaps"]);
    spoilt(
        &|m| *m.pointer_mut(&(record(0) + "/shape")).unwrap() = json!([u64::MAX, 64]),
        &["bytes"],
    );
    spoilt(
        &|m| *m.pointer_mut(&(record(0) + "/name")).unwrap() = json!("lm_head.q_scale"),
        &["twice"],
    );
    spoilt(
        &|m| *m.pointer_mut(&(record(0) + "/name")).unwrap() = json!("other"),
        &["does not hold"],
    );
    spoilt(
        &|m| *m.pointer_mut("/records/0/dataPath").unwrap() = json!("../secret"),
        &["../secret"],
    );
    spoilt(
        &|m| *m.pointer_mut("/records/0/nbytes").unwrap() = json!(7),
        &["ends beyond its shard"],
    );
}

#[test]
fn packlight_manifests_that_lie() {
    let spoilt = |edit: &dyn Fn(&mut serde_json::Value), word: &str| {
        let (_folder, bundle) = converted(&fixture("mistral"));
        edit_json(&bundle.join("packlight.json"), edit);
        let found = packlight!("verify", bundle);
        assert!(found.code == 1 && found.stdout.contains(word), "`{word}` is not in: {found:?}");
        let error = packlight!("run", bundle, "--tokens", "1", "--device", "cpu").fails(2);
        assert!(error.contains(word) && error.contains("hint: "), "`{word}` is not in: {error}");
    };
    spoilt(&|m| m["schema_version"] = json!(2), "schema_version 2");
    spoilt(&|m| m["surprise"] = json!(1), "surprise");
    spoilt(&|m| m["chunk_bytes"] = json!(0), "chunk_bytes");
    spoilt(&|m| m["files"][0]["path"] = json!("../../x"), "../../x");
    spoilt(&|m| m["files"][0]["sha256"] = json!(["zz"]), "zz");
    spoilt(&|m| m["files"][1]["path"] = m["files"][0]["path"].clone(), "of its own");
    spoilt(&|m| m["model"]["hidden"] = json!(65), "model.embed_tokens.weight");
    spoilt(&|m| m["model"]["layers"][0]["mixer"]["attention"]["kv_heads"] = json!(0), "layer 0");
    spoilt(&|m| m["model"]["layers"][0]["mixer"]["attention"]["rope"] = json!(7), "rope 7");
    spoilt(
        &|m| m["model"]["layers"][0]["mlp"]["gated"]["down"]["weight"]["shape"] = json!([64, 0]),
        "down_proj",
    );
}

/// Token ids need no tokenizer; text does.
#[test]
fn a_broken_tokenizer_only_matters_to_text() {
    let checkpoint = copy(&repo("demo"));
    fs_err::write(
        checkpoint.path().join("tokenizer.json"),
        r#"{"version": "1.0", "model": {"type": "?"}}"#,
    )
    .unwrap();
    let (_folder, bundle) = converted(checkpoint.path());
    let ran =
        packlight!("run", bundle, "--tokens", "1,2,3", "-n", "1", "--device", "cpu", "--json");
    assert!(ran.stderr.contains("tokenizer.json cannot be read"), "{}", ran.stderr);
    assert_eq!(ran.json()["text"], serde_json::Value::Null);
    let error = packlight!("run", bundle, "-p", "Hi", "--device", "cpu").fails(2);
    assert!(error.contains("tokenizer.json cannot be read"), "{error}");
}

#[test]
fn prompts_that_cannot_be_run() {
    let (_folder, bundle) = converted(&fixture("llama"));
    let bundle = bundle.to_str().unwrap();
    let refused = |args: &[&str], word: &str| {
        let mut all = vec!["run", bundle, "--device", "cpu"];
        all.extend(args);
        let error = crate::support::packlight(all).fails(2);
        assert!(error.contains(word), "`{word}` is not in: {error}");
    };
    refused(&["--tokens", "1,320"], "outside the vocabulary of 320");
    refused(&["--tokens", "1,x"], "invalid value");
    refused(&["-p", "Hi"], "no tokenizer.json");
    refused(&["--tokens", "1", "-n", "600"], "context of 512");
    refused(&["--tokens", "1", "--raw", "x"], "cannot be used with");
    refused(&["--tokens", "1", "-n", "2", "--temperature", "-1"], "temperature");
    let nowhere = packlight!("run", repo("tests"), "--tokens", "1").fails(2);
    assert!(
        nowhere.contains("neither packlight.json nor tensor-cache.json")
            && nowhere.contains("hint: "),
        "{nowhere}"
    );
}

#[test]
fn asking_for_a_gpu_where_there_is_none_is_an_error() {
    let (_folder, bundle) = converted(&fixture("llama"));
    let run = |device: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_packlight"));
        // No Vulkan driver is found in an empty list of them.
        command.env("VK_DRIVER_FILES", "/nonexistent").env("VK_ICD_FILENAMES", "/nonexistent");
        command.args([
            "run",
            bundle.to_str().unwrap(),
            "--tokens",
            "1",
            "-n",
            "2",
            "--device",
            device,
            "--json",
        ]);
        command.output().unwrap()
    };
    let error = run("gpu");
    let said = String::from_utf8_lossy(&error.stderr).into_owned();
    assert!(
        error.status.code() == Some(2)
            && said.contains("no WebGPU adapter")
            && said.contains("hint: "),
        "{said}"
    );
    let fallback = run("auto");
    let said = String::from_utf8_lossy(&fallback.stderr).into_owned();
    assert!(fallback.status.success() && said.contains("running on the CPU reference"), "{said}");
    assert!(String::from_utf8_lossy(&fallback.stdout).contains("CPU reference"));
    let _ = gpu();
}
