//! From text to tokens and back, on the demo model, against transformers.

use serde_json::Value;

use crate::packlight;
use crate::support::{converted, repo};

/// `demo/reference.json`: prompts and what transformers made of them, in f32.
fn reference() -> Value {
    serde_json::from_slice(&fs_err::read(repo("demo/reference.json")).unwrap()).unwrap()
}

#[test]
fn prompts_are_tokenised_as_transformers_does() {
    let (_folder, bundle) = converted(&repo("demo"));
    for (prompt, expected) in reference()["gen"].as_object().unwrap() {
        // Two of the prompts are texts to continue, not messages.
        let how = if prompt.ends_with(['?', '.', 'i']) { "-p" } else { "--raw" };
        let report =
            packlight!("run", bundle, how, prompt, "-n", "0", "--json", "--device", "cpu").json();
        assert_eq!(report["prompt_tokens"], expected["prompt_ids"], "{prompt}");
    }
}

#[test]
fn seeds_decide_what_temperature_leaves_open() {
    let (_folder, bundle) = converted(&repo("demo"));
    let sampled = |seed: &str| {
        let args = [
            "--raw",
            "The",
            "-n",
            "24",
            "--device",
            "cpu",
            "--temperature",
            "1.5",
            "--top-p",
            "0.95",
            "--json",
        ];
        let mut all = vec!["run", bundle.to_str().unwrap(), "--seed", seed];
        all.extend(args);
        crate::support::packlight(all).json()["tokens"].clone()
    };
    assert_eq!(sampled("7"), sampled("7"));
    assert_ne!(sampled("7"), sampled("8"));
}

#[test]
fn text_streams_to_stdout_and_stops_at_the_end_of_the_answer() {
    let (_folder, bundle) = converted(&repo("demo"));
    let ran = packlight!("run", bundle, "-p", "What is the capital of France?", "--device", "cpu");
    assert_eq!(ran.ok(), "The capital of France is Paris.\n");
}
