//! Checkpoints as the hub has them, which transformers loads: they are converted, too.

use std::path::Path;

use safetensors::tensor::Dtype;
use serde_json::{Value, json};

use crate::packlight;
use crate::support::{Tensor, converted, copy, edit_json, edit_tensors, fixture};

fn read(bundle: &Path, file: &str) -> Value {
    serde_json::from_slice(&fs_err::read(bundle.join(file)).unwrap()).unwrap()
}

/// A way round an unknown key, which the bundle tells of and verification knows.
#[test]
fn an_unknown_key_can_be_ignored() {
    let checkpoint = copy(&fixture("llama"));
    edit_json(&checkpoint.path().join("config.json"), |c| c["clever_trick"] = json!(3));
    let bundle = checkpoint.path().join("bundle");
    let ran = packlight!(
        "convert",
        checkpoint.path(),
        "-o",
        bundle,
        "--ignore-config-key",
        "clever_trick"
    );
    assert!(ran.stderr.contains("warning: config key `clever_trick` is ignored"), "{}", ran.stderr);
    ran.ok();
    assert_eq!(
        read(&bundle, "packlight.json")["source"]["ignored_config_keys"],
        json!(["clever_trick"])
    );
    packlight!("verify", bundle, "--against", checkpoint.path()).ok();
}

#[test]
fn what_a_config_leaves_to_its_class_is_one_thing_everywhere() {
    let checkpoint = copy(&fixture("llama"));
    edit_json(&checkpoint.path().join("config.json"), |config| {
        config.as_object_mut().unwrap().shift_remove("max_position_embeddings");
    });
    let (_folder, bundle) = converted(checkpoint.path());
    assert_eq!(read(&bundle, "packlight.json")["model"]["context"], 2048);
    assert_eq!(read(&bundle, "mlc-chat-config.json")["context_window_size"], 2048);
}

/// transformers loads every file of the index whole, and asks for nothing more than that each weight is there.
#[test]
fn only_tensors_that_are_needed_can_be_at_fault() {
    let tensor = |name: &str, byte: u8| Tensor {
        name: name.into(),
        dtype: Dtype::BF16,
        shape: vec![64],
        bytes: vec![byte; 128],
    };
    let file = |n: u32| format!("model-0000{n}-of-00003.safetensors");
    let (_expected, expected) = converted(&fixture("qwen3"));
    let checkpoint = copy(&fixture("qwen3"));
    edit_json(&checkpoint.path().join("model.safetensors.index.json"), |index| {
        let map = index["weight_map"].as_object_mut().unwrap();
        map.insert("lm_head.weight".into(), json!(file(1)));
        // Each header says what is in a file; the index need not.
        map.insert("model.layers.0.input_layernorm.weight".into(), json!(file(3)));
        map.remove("model.norm.weight");
    });
    let last = checkpoint.path().join(file(3));
    edit_tensors(&last, |tensors| {
        tensors.push(tensor("model.layers.0.self_attn.rotary_emb.inv_freq", 0));
        tensors.push(tensor("score.weight", 0));
        tensors.push(tensor("model.layers.0.self_attn.k_proj.k_scale", 0));
    });
    let mut norm = None;
    for n in 1..=3 {
        edit_tensors(&checkpoint.path().join(file(n)), |tensors| {
            norm = norm.take().or(tensors.iter().find(|t| t.name == "model.norm.weight").cloned());
            tensors.push(tensor("model.mystery", u8::try_from(n).unwrap()));
        });
    }
    let norm = norm.unwrap();
    for n in 1..=3 {
        edit_tensors(&checkpoint.path().join(file(n)), |tensors| {
            tensors.retain(|tensor| tensor.name != norm.name);
            tensors.push(norm.clone());
        });
    }
    let bundle = checkpoint.path().join("bundle");
    let ran = packlight!("convert", checkpoint.path(), "-o", bundle, "--codes", "mlc");
    assert!(ran.stderr.contains("belongs to no weight of the model"), "{}", ran.stderr);
    ran.ok();
    let listed = packlight!("inspect", checkpoint.path()).ok();
    for name in ["lm_head.weight", "inv_freq", "score.weight", "k_scale", "model.mystery"] {
        let line = listed.lines().find(|line| line.contains(name));
        assert!(line.is_some_and(|line| line.starts_with("skipped ")), "{name}: {listed}");
    }
    let shards = |bundle: &Path| fs_err::read(bundle.join("params_shard_0.bin")).unwrap().len();
    assert_eq!(shards(&bundle), shards(&expected));
    packlight!("verify", bundle, "--against", checkpoint.path()).ok();

    edit_tensors(&last, |tensors| {
        tensors.iter_mut().find(|tensor| tensor.name == norm.name).unwrap().bytes[7] ^= 1;
    });
    let other = checkpoint.path().join("other");
    let error = packlight!("convert", checkpoint.path(), "-o", other).fails(2);
    let words = ["`model.norm.weight` is in `model-0000", "with other contents", "hint: "];
    assert!(words.iter().all(|word| error.contains(word)), "{error}");
}
