//! Every scheme on WebGPU against the CPU reference, from the same bytes.

use std::path::Path;

use packlight_formats::quant::SCHEMES;
use packlight_runner::bundle::{Bundle, Trust};
use packlight_runner::engine::{Device, Engine};
use packlight_runner::executor::{Output, Want};
use packlight_runner::gpu::Caps;
use packlight_runner::source::Folder;
use serde_json::json;
use tempfile::TempDir;

use crate::fixtures::relative_error;
use crate::packlight;
use crate::support::{copy, edit_json, edit_tensors, fixture, gpu, gpu_with};

/// Relative L2 error; 1e-6 is usual.
const BOUND: f64 = 1e-5;
/// Prefill in two parts, decoding in between.
const CALLS: [usize; 4] = [17, 1, 30, 1];

#[test]
fn every_scheme_is_the_same_on_both_devices() {
    if !gpu() {
        return;
    }
    let odd = odd_llama();
    for scheme in SCHEMES {
        for checkpoint in [&fixture("llama"), odd.path(), &fixture("qwen3_moe")] {
            agree(checkpoint, &["--scheme", scheme.name]);
        }
    }
}

#[test]
fn so_is_a_mix_of_schemes() {
    if gpu() {
        let rules =
            ["o_proj=q0f32", "down_proj=q8f16_1", "layers.1.mlp.gate=q3f16_0", "qkv=q4bf16_0"];
        let mut args = vec!["--scheme", "q4f16_2"];
        args.extend(rules.iter().flat_map(|rule| ["--override", *rule]));
        agree(odd_llama().path(), &args);
    }
}

/// No row of any of its matrices fills whole groups, words or tiles, and some have an odd number of values.
fn odd_llama() -> TempDir {
    let checkpoint = copy(&fixture("llama"));
    edit_json(&checkpoint.path().join("config.json"), |config| {
        config["hidden_size"] = json!(65);
        config["intermediate_size"] = json!(71);
        config["vocab_size"] = json!(301);
    });
    edit_tensors(&checkpoint.path().join("model.safetensors"), |tensors| {
        let mut state = 1u32;
        let mut noise = || {
            // Marsaglia's xorshift.
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            half::bf16::from_f32(state as f32 / u32::MAX as f32 - 0.5).to_le_bytes()
        };
        for tensor in tensors {
            for length in &mut tensor.shape {
                *length = match *length {
                    64 if !tensor.name.contains("k_proj") && !tensor.name.contains("v_proj") => 65,
                    128 if tensor.name.contains("mlp") => 71,
                    320 => 301,
                    other => other,
                };
            }
            if tensor.name.contains("k_proj") || tensor.name.contains("v_proj") {
                tensor.shape[1] = 65;
            }
            let elements = tensor.shape.iter().product::<usize>();
            tensor.bytes = (0..elements).flat_map(|_| noise()).collect();
        }
    });
    checkpoint
}

/// Converts, then compares the logits of every call on the GPU, at its floor and with all its limits.
fn agree(checkpoint: &Path, options: &[&str]) {
    let folder = TempDir::new().unwrap();
    let bundle = folder.path().join("bundle");
    let paths = ["convert", checkpoint.to_str().unwrap(), "-o", bundle.to_str().unwrap()];
    crate::support::packlight(paths.iter().chain(options)).ok();
    let expected = logits(&bundle, Device::Cpu, None);
    for caps in [Caps::floor(), Caps::auto()] {
        let found = logits(&bundle, Device::Gpu, Some(caps));
        let error = relative_error(&found, &expected);
        assert!(error <= BOUND, "{options:?} of {}: {error:.1e}", checkpoint.display());
    }
}

fn logits(bundle: &Path, device: Device, ceiling: Option<Caps>) -> Vec<f32> {
    pollster::block_on(async {
        let bundle = Bundle::open(Folder::new(bundle), Trust::Nothing).await.unwrap();
        let mut engine = Engine::load(&bundle, device, ceiling, 64, |_| ()).await.unwrap();
        let vocab = bundle.model().vocab;
        let mut all = Vec::new();
        for length in CALLS {
            let start = engine.position();
            let tokens: Vec<u32> =
                (start..).take(length).map(|position| position * 37 % vocab).collect();
            let Output::Logits(logits) = engine.feed(&tokens, Want::AllLogits).await.unwrap()
            else {
                panic!("no logits")
            };
            all.extend(logits);
        }
        all
    })
}

/// What was asked for and cannot be had is said; what cannot be asked for is refused.
#[test]
fn caps_that_cannot_be_met_are_said_to_be() {
    let error = packlight!("devices", "--caps", "f16").fails(2);
    assert!(error.contains("`f16`") && error.contains("+f16"), "{error}");
    if !gpu_with("subgroups") {
        return;
    }
    let sizes = &packlight!("devices", "--json").json()[0]["features"]["subgroups"];
    let covers_32 = sizes["min"].as_u64() <= Some(32) && sizes["max"].as_u64() >= Some(32);
    let (_folder, bundle) = crate::support::converted(&fixture("llama"));
    let run =
        |caps| packlight!("run", bundle, "--tokens", "1,2,3", "-n", "8", "--json", "--caps", caps);
    let (plain, asked) = (run("auto"), run("+subgroups"));
    assert!(!plain.stderr.contains("note"), "{}", plain.stderr);
    let refused = asked.stderr.contains("`matvec subgroups` is not used");
    assert!(refused != covers_32, "{}", asked.stderr);
    assert_eq!(plain.json()["tokens"], asked.json()["tokens"]);
}
