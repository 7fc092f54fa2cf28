//! Bundles as MLC-LLM writes them: no packlight.json, the model described by mlc-chat-config.json.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::packlight;
use crate::support::{converted, edit_json, fixture, floats, gpu, repo};

/// Makes a bundle one of MLC's.
fn strip(bundle: &Path) {
    fs_err::remove_file(bundle.join("packlight.json")).unwrap();
}

fn plain(checkpoint: &Path) -> (TempDir, PathBuf) {
    let (folder, bundle) = converted(checkpoint);
    strip(&bundle);
    (folder, bundle)
}

/// Logits of 100 tokens, more than any window and than Phi-3's short range.
fn logits(bundle: &Path) -> Vec<f32> {
    logits_on(bundle, &["--device", "cpu"])
}

fn logits_on(bundle: &Path, device: &[&str]) -> Vec<f32> {
    let tokens: Vec<String> = (0..100).map(|i| (i * 37 % 320).to_string()).collect();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("logits.safetensors");
    let (bundle, tokens) = (bundle.to_str().unwrap(), tokens.join(","));
    let mut args = vec!["run", bundle, "--tokens", &tokens, "--logits", file.to_str().unwrap()];
    args.extend(device);
    crate::support::packlight(args).ok();
    floats(&file, "logits")
}

#[test]
fn every_architecture_runs_without_our_manifest() {
    for entry in fs_err::read_dir(repo("tests/fixtures")).unwrap() {
        let checkpoint = entry.unwrap().path();
        if !checkpoint.is_dir() {
            continue;
        }
        let (_folder, bundle) = converted(&checkpoint);
        let expected = logits(&bundle);
        strip(&bundle);
        assert!(logits(&bundle) == expected, "{}", checkpoint.display());
    }
}

/// Shards are MLC's byte for byte (`golden.rs`), so with the configuration that MLC wrote the bundle is MLC's.
#[test]
fn mlcs_own_configurations_describe_what_ours_do() {
    for name in ["llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3"] {
        let source = repo("tests/golden").join(name);
        let (_folder, bundle) = converted(&source);
        let expected = logits(&bundle);
        strip(&bundle);
        let config = fs_err::read(source.join("mlc-chat-config.json")).unwrap();
        fs_err::write(bundle.join("mlc-chat-config.json"), config).unwrap();
        assert!(logits(&bundle) == expected, "{name}");
    }
}

#[test]
fn bundles_from_before_tvm_0_22_have_the_manifest_under_its_old_name() {
    let (_folder, bundle) = plain(&repo("demo"));
    fs_err::remove_file(bundle.join("tensor-cache.json")).unwrap();
    let ran = packlight!("run", bundle, "-p", "Hi", "--device", "cpu");
    assert_eq!(ran.ok(), "Hello! How can I help you today?\n");
    assert!(packlight!("verify", bundle).ok().contains("1 MD5 sums checked, 0 problems"));
    let report = packlight!("inspect", bundle, "--json").json();
    assert_eq!(report["scheme"], "q4f16_1");
    assert_eq!(report["model"]["architecture"], "llama");
    assert!(packlight!("inspect", bundle).ok().contains("note        a plain MLC bundle"));
}

/// MLC's conversation template serves where there is no chat template of the checkpoint's own.
#[test]
fn the_conversation_template_is_used_for_want_of_a_chat_template() {
    let (_folder, bundle) = plain(&repo("demo"));
    let prompt = |bundle: &Path| {
        packlight!("run", bundle, "-p", "Hi", "-n", "0", "--json", "--device", "cpu").json()["prompt_tokens"].clone()
    };
    let own = prompt(&bundle);
    edit_json(&bundle.join("tokenizer_config.json"), |config| {
        config.as_object_mut().unwrap().remove("chat_template");
    });
    // ChatML as MLC has it writes an empty system message.
    let raw =
        "<|im_start|>system\n<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
    let raw =
        packlight!("run", bundle, "--raw", raw, "-n", "0", "--json", "--device", "cpu").json();
    assert_eq!(prompt(&bundle), raw["prompt_tokens"]);
    assert_ne!(prompt(&bundle), own);
}

/// Changes the manifest, and with a function of the shard's bytes the shard and its MD5 sum.
fn edit(bundle: &Path, change: impl FnOnce(&mut Value, Vec<u8>) -> Vec<u8>) {
    let shard = bundle.join("params_shard_0.bin");
    edit_json(&bundle.join("tensor-cache.json"), |cache| {
        let bytes = change(cache, fs_err::read(&shard).unwrap());
        fs_err::write(&shard, bytes).unwrap();
    });
}

fn records(cache: &mut Value) -> &mut Vec<Value> {
    cache["records"][0]["records"].as_array_mut().unwrap()
}

/// Stores every float32 record in four bytes a value, as it is in memory.
fn widen(cache: &mut Value, bytes: &[u8]) -> Vec<u8> {
    let mut wide = Vec::new();
    for record in records(cache) {
        let (start, size) =
            (record["byteOffset"].as_u64().unwrap(), record["nbytes"].as_u64().unwrap());
        let stored = &bytes[usize::try_from(start).unwrap()..][..usize::try_from(size).unwrap()];
        record["byteOffset"] = json!(wide.len());
        if record["dtype"] == "float32" {
            record["nbytes"] = json!(2 * size);
            wide.extend(stored.chunks(2).flat_map(|half| [0, 0, half[0], half[1]]));
        } else {
            wide.extend(stored);
        }
    }
    cache["records"][0]["nbytes"] = json!(wide.len());
    wide
}

/// Row 5 of the behaviours taken over from other runtimes.
#[test]
fn float32_is_read_in_both_lengths() {
    for scheme in ["q0f32", "q4f32_1"] {
        let folder = TempDir::new().unwrap();
        let bundle = folder.path().join("bundle");
        packlight!("convert", fixture("qwen3"), "-o", bundle, "--scheme", scheme).ok();
        strip(&bundle);
        let expected = logits(&bundle);
        edit(&bundle, |cache, bytes| widen(cache, &bytes));
        let run = |more: &[&str]| {
            let mut args = vec!["run", bundle.to_str().unwrap(), "--tokens", "1,2"];
            args.extend(more);
            crate::support::packlight(args)
        };
        // The shard's MD5 sum is no longer that of the manifest.
        assert!(run(&["--device", "cpu"]).fails(2).contains("does not have the MD5 sum"));
        let md5 = md5_of(&bundle);
        edit_json(&bundle.join("tensor-cache.json"), |cache| {
            cache["records"][0]["md5sum"] = json!(md5);
        });
        assert!(logits(&bundle) == expected, "{scheme}");
        if gpu() {
            for caps in ["none,-software", "auto"] {
                let found = logits_on(&bundle, &["--device", "gpu", "--caps", caps]);
                let largest = expected.iter().fold(0_f32, |most, x| most.max(x.abs()));
                let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-4 * largest;
                assert!(expected.iter().zip(&found).all(near), "{scheme} {caps}");
            }
        }
        edit_json(&bundle.join("tensor-cache.json"), |cache| {
            let norm =
                records(cache).iter_mut().find(|r| r["name"] == "model.norm.weight").unwrap();
            norm["nbytes"] = json!(3 * 64);
        });
        let error = run(&["--device", "cpu"]).fails(2);
        assert!(error.contains("`model.norm.weight` has 192 bytes"), "{error}");
    }
}

fn md5_of(bundle: &Path) -> String {
    use md5::{Digest as _, Md5};
    let bytes = fs_err::read(bundle.join("params_shard_0.bin")).unwrap();
    packlight_formats::digest::hex(&Md5::digest(bytes))
}

/// Whatever is wrong is named before a single token comes.
#[test]
fn damage_is_named() {
    let refused = |spoil: &dyn Fn(&Path), verified: bool, words: &[&str]| {
        let (_folder, bundle) = plain(&fixture("mistral"));
        spoil(&bundle);
        let found = packlight!("verify", bundle);
        assert_eq!(found.code, i32::from(!verified), "{found:?}");
        let ran = packlight!("run", bundle, "--tokens", "1,2", "-n", "2", "--device", "cpu");
        assert_eq!(ran.stdout, "");
        let error = ran.fails(2);
        for word in words.iter().chain(&["hint: "]) {
            assert!(error.contains(word), "`{word}` is not in: {error}");
        }
    };
    let cache = |change: &dyn Fn(&mut Value), words: &[&str]| {
        refused(&|bundle| edit_json(&bundle.join("tensor-cache.json"), change), false, words);
    };
    let lost = "model.layers.2.mlp.down_proj.q_scale";
    // The manifest is sound in itself; only the model shows what it lacks.
    refused(
        &|bundle| {
            edit_json(&bundle.join("tensor-cache.json"), |cache| {
                records(cache).retain(|record| record["name"] != lost);
            });
        },
        true,
        &[lost],
    );
    refused(
        &|bundle| {
            let shard = bundle.join("params_shard_0.bin");
            let bytes = fs_err::read(&shard).unwrap();
            fs_err::write(&shard, &bytes[..bytes.len() - 8]).unwrap();
        },
        false,
        &["record `", "is cut off: `params_shard_0.bin` ends at byte"],
    );
    refused(
        &|bundle| fs_err::remove_file(bundle.join("params_shard_0.bin")).unwrap(),
        false,
        &["`params_shard_0.bin` is missing"],
    );
    refused(
        &|bundle| {
            let shard = bundle.join("params_shard_0.bin");
            let mut bytes = fs_err::read(&shard).unwrap();
            bytes[70_001] ^= 4;
            fs_err::write(&shard, bytes).unwrap();
        },
        false,
        &["`params_shard_0.bin` does not have the MD5 sum"],
    );
    cache(&|c| records(c)[3]["byteOffset"] = json!(u64::MAX), &["ends beyond its shard"]);
    cache(&|c| records(c)[3]["byteOffset"] = json!(0), &["overlaps"]);
    cache(&|c| records(c)[0]["shape"] = json!([u64::MAX, 64]), &["bytes"]);
    cache(&|c| c["records"][0]["dataPath"] = json!("../secret"), &["../secret"]);
    cache(&|c| c["records"][0]["nbytes"] = json!(7), &["ends beyond its shard"]);
}

#[test]
fn configurations_that_say_too_little_or_too_much() {
    let refused = |change: &dyn Fn(&mut Value), words: &[&str]| {
        let (_folder, bundle) = plain(&fixture("llama"));
        edit_json(&bundle.join("mlc-chat-config.json"), change);
        let error = packlight!("run", bundle, "--tokens", "1", "--device", "cpu").fails(2);
        for word in words.iter().chain(&["mlc-chat-config.json"]) {
            assert!(error.contains(word), "`{word}` is not in: {error}");
        }
    };
    refused(&|c| c["quantization"] = json!("q4f16_ft"), &["`q4f16_ft`", "hint: ", "q4f16_1"]);
    refused(&|c| c["model_type"] = json!("rwkv6"), &["`rwkv6`", "known architectures", "llama"]);
    refused(&|c| c["model_config"]["logit_wobble"] = json!(1), &["logit_wobble", "hint: "]);
    refused(&|c| c["model_config"] = json!(null), &["not a JSON object"]);
    refused(&|c| *c = json!({}), &["model_type"]);

    let (_folder, bundle) = plain(&fixture("llama"));
    edit_json(&bundle.join("mlc-chat-config.json"), |config| {
        config["model_config"].as_object_mut().unwrap().remove("rope_scaling");
    });
    let ran = packlight!("run", bundle, "--tokens", "1", "-n", "1", "--device", "cpu");
    assert!(ran.stderr.contains("does not say `rope_scaling`"), "{}", ran.stderr);

    fs_err::remove_file(bundle.join("mlc-chat-config.json")).unwrap();
    let error = packlight!("run", bundle, "--tokens", "1", "--device", "cpu").fails(2);
    assert!(error.contains("neither packlight.json nor mlc-chat-config.json"), "{error}");
    assert!(error.contains("hint: "), "{error}");
}
