//! `packlight demo` is what a newcomer runs first.

use crate::packlight;
use crate::support::gpu;

/// Row 25 of the behaviours taken over from other runtimes: prompts checked with times, the device and the bundle's hash.
#[test]
fn demo_answers_on_both_devices() {
    let devices = [Some("cpu"), gpu().then_some("gpu")];
    for device in devices.into_iter().flatten() {
        let report = packlight!("demo", "--json", "--device", device).json();
        assert_eq!(report["ok"], true);
        let answers: Vec<&str> = report["prompts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|p| p["answer"].as_str().unwrap())
            .collect();
        assert_eq!(
            answers[..2],
            ["Hello! How can I help you today?", "The capital of France is Paris."]
        );
        assert_eq!(answers[2].lines().count(), 3, "a haiku: {}", answers[2]);
        assert!(!report["device"].as_str().unwrap().is_empty());
        assert_eq!(report["bundle"]["sha256"].as_str().unwrap().len(), 64);
        for prompt in report["prompts"].as_array().unwrap() {
            for figure in ["load_s", "prefill_s", "decode_s", "tokens_per_s"] {
                assert!(prompt[figure].as_f64().unwrap() > 0.0, "{figure}");
            }
        }
    }
}
