//! Every architecture against transformers' logits, on the CPU reference and on WebGPU.

use std::path::Path;

use packlight_formats::arch::ARCHITECTURES;
use serde_json::Value;

use crate::packlight;
use crate::support::{converted, fixture, floats, gpu, gpu_with, integers, repo};

/// Relative L2 error of f32 runners; 0.01 % is usual.
const BOUND: f64 = 1e-3;
/// The same where f16 was asked for.
const F16_BOUND: f64 = 1e-2;
/// Where the first two logits are this close, either may win.
const CLOSE: f64 = 0.05;

#[test]
fn cpu_reference_computes_what_transformers_computes() {
    check_all("cpu", &[]);
}

#[test]
fn gpu_computes_what_transformers_computes() {
    if gpu() {
        check_all("gpu", &[]);
    }
}

#[test]
fn the_webgpu_floor_suffices() {
    if gpu() {
        // Without the kernels that software adapters have to themselves.
        check_all("gpu", &["--caps", "none,-software"]);
    }
}

/// With f16 in the tiles of matmuls.
#[test]
fn f16_costs_little() {
    if gpu_with("f16") {
        check_all_within(F16_BOUND, "gpu", &["--caps", "none,-software,+f16"]);
    }
}

/// Eight bits are close to the unquantised model, on both devices.
#[test]
fn eight_bits_cost_little() {
    let source = fixture("gemma4");
    let folder = tempfile::TempDir::new().unwrap();
    let (bundle, logits) = (folder.path().join("bundle"), folder.path().join("logits.safetensors"));
    packlight!("convert", source, "-o", bundle, "--scheme", "q8f16_1").ok();
    let references = source.join("reference.safetensors");
    let prompt: Vec<String> =
        integers(&references, "input_ids").iter().map(i32::to_string).collect();
    for device in [Some("cpu"), gpu().then_some("gpu")].into_iter().flatten() {
        packlight!(
            "run",
            bundle,
            "--tokens",
            prompt.join(","),
            "--logits",
            logits,
            "--device",
            device
        )
        .ok();
        let error = relative_error(&floats(&logits, "logits"), &floats(&references, "logits_f32"));
        assert!(error < 0.02, "{device}: {error}");
    }
}

#[test]
fn every_architecture_has_a_fixture() {
    let covered: Vec<String> = fixtures().iter().map(|name| model_type(&fixture(name))).collect();
    for arch in ARCHITECTURES {
        assert!(
            covered.iter().any(|model_type| model_type == arch.model_type),
            "no fixture of {}",
            arch.model_type
        );
    }
}

fn fixtures() -> Vec<String> {
    let entries = fs_err::read_dir(repo("tests/fixtures")).unwrap().map(|entry| entry.unwrap());
    let folders = entries.filter(|entry| entry.path().is_dir());
    let mut names: Vec<String> =
        folders.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn model_type(folder: &Path) -> String {
    let config: Value =
        serde_json::from_slice(&fs_err::read(folder.join("config.json")).unwrap()).unwrap();
    config["model_type"].as_str().unwrap().to_owned()
}

fn check_all(device: &str, more: &[&str]) {
    check_all_within(BOUND, device, more);
}

fn check_all_within(bound: f64, device: &str, more: &[&str]) {
    for name in fixtures() {
        check(&name, bound, device, more);
    }
}

fn check(name: &str, bound: f64, device: &str, more: &[&str]) {
    let source = fixture(name);
    let (folder, bundle) = converted(&source);
    let references = source.join("reference.safetensors");
    let prompt: Vec<String> =
        integers(&references, "input_ids").iter().map(i32::to_string).collect();
    let reference: Value =
        serde_json::from_slice(&fs_err::read(source.join("reference.json")).unwrap()).unwrap();
    let expected: Vec<u64> = reference["greedy_q4_g32"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t.as_u64().unwrap())
        .collect();
    let margins = reference["greedy_margins_q4"].as_array().unwrap();

    let logits = folder.path().join("logits.safetensors");
    let (prompt, count) = (prompt.join(","), expected.len().to_string());
    let mut args =
        vec!["run", bundle.to_str().unwrap(), "--tokens", &prompt, "-n", &count, "--json"];
    args.extend(["--device", device, "--logits", logits.to_str().unwrap()]);
    args.extend(more);
    let report = crate::support::packlight(&args).json();

    let error = relative_error(&floats(&logits, "logits"), &floats(&references, "logits_q4_g32"));
    assert!(error <= bound, "{name} on {device}: relative L2 error {error:.2e}");
    let tokens: Vec<u64> =
        report["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap()).collect();
    let sure = margins.iter().take_while(|margin| margin.as_f64().unwrap() > CLOSE).count();
    assert_eq!(tokens[..sure], expected[..sure], "{name} on {device}");
    assert_eq!(report["text"], Value::Null, "{name} has no tokenizer");
}

pub(crate) fn relative_error(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let square = |x: f64| x * x;
    let error: f64 =
        found.iter().zip(expected).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    let size: f64 = expected.iter().map(|b| square(f64::from(*b))).sum();
    (error / size).sqrt()
}

/// Feeding a prompt at once, in chunks, or token by token gives the same logits.
#[test]
fn chunked_prefill_equals_single_tokens() {
    // Mistral's window of 16 is crossed twice.
    let sizes: [&[usize]; 4] = [&[1; 48], &[15, 1, 16, 1, 15], &[17, 31], &[5, 1, 37, 5]];
    same_in_calls_of("mistral", 48, &sizes);
}

/// Phi-3 turns positions by other tables once there are more than 64, those that came before included.
#[test]
fn a_text_that_outgrows_its_rotary_tables_is_read_anew() {
    same_in_calls_of("phi3", 80, &[&[64, 16], &[60, 1, 1, 1, 1, 1, 15], &[65, 15], &[1; 80]]);
}

/// Feeds `length` tokens at once and in calls of these sizes, and compares the last logits.
fn same_in_calls_of(name: &str, length: usize, calls: &[&[usize]]) {
    use packlight_runner::bundle::{Bundle, Trust};
    use packlight_runner::engine::{Device, Engine};
    use packlight_runner::executor::{Output, Want};
    use packlight_runner::source::Folder;

    let (_folder, bundle) = converted(&fixture(name));
    let ids = integers(&fixture(name).join("reference.safetensors"), "input_ids");
    let prompt: Vec<u32> =
        ids.into_iter().map(|id| u32::try_from(id).unwrap()).cycle().take(length).collect();
    let devices = [Some(Device::Cpu), gpu().then_some(Device::Gpu)];
    for device in devices.into_iter().flatten() {
        pollster::block_on(async {
            let bundle = Bundle::open(Folder::new(&bundle), Trust::Nothing).await.unwrap();
            let mut engine = Engine::load(&bundle, device, None, 96, |_| ()).await.unwrap();
            let mut run = async |sizes: &[usize]| {
                engine.reset();
                let mut rest = &prompt[..];
                let mut last = Output::Nothing;
                for &size in sizes {
                    let (now, later) = rest.split_at(size);
                    last = engine.feed(now, Want::LastLogits).await.unwrap();
                    rest = later;
                }
                let Output::Logits(logits) = last else { panic!("no logits") };
                logits
            };
            let whole = run(&[length]).await;
            for sizes in calls {
                let error = relative_error(&run(sizes).await, &whole);
                assert!(error < 1e-5, "{name} on {device:?} in calls of {sizes:?}: {error:.1e}");
            }
        });
    }
}
