//! Single weights under other schemes.

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::packlight;
use crate::support::fixture;

#[test]
fn overrides_are_recorded_and_followed() {
    let folder = TempDir::new().unwrap();
    let (bundle, recipe) = (folder.path().join("bundle"), folder.path().join("recipe.toml"));
    let rules = "[[override]]\npattern = 'mlp\\.'\nscheme = 'q0f16'\n\n[[override]]\npattern = 'down_proj'\nscheme = 'q3f16_1'\n";
    fs_err::write(&recipe, rules).unwrap();
    // The command line comes after the recipe, and the last match wins.
    let lm_head =
        ["--override", "^lm_head=q0f16", "--override", "layers.0.mlp.down_proj.weight$=q4f16_0"];
    let mut args = vec!["convert", fixture("llama_untied").to_str().unwrap()]
        .into_iter()
        .map(str::to_owned)
        .collect::<Vec<_>>();
    args.extend(
        ["-o", bundle.to_str().unwrap(), "--recipe", recipe.to_str().unwrap()].map(str::to_owned),
    );
    args.extend(lm_head.map(str::to_owned));
    crate::support::packlight(&args).ok();

    let manifest: Value =
        serde_json::from_slice(&fs_err::read(bundle.join("packlight.json")).unwrap()).unwrap();
    let schemes: Vec<&str> = manifest["overrides"]
        .as_array()
        .unwrap()
        .iter()
        .map(|o| o["scheme"].as_str().unwrap())
        .collect();
    assert_eq!(schemes, ["q0f16", "q3f16_1", "q0f16", "q4f16_0"]);
    assert_eq!(manifest["overrides"][2]["weights"], json!(["lm_head.weight"]));

    let cache: Value =
        serde_json::from_slice(&fs_err::read(bundle.join("tensor-cache.json")).unwrap()).unwrap();
    let records = cache["records"][0]["records"].as_array().unwrap();
    let shape = |name: &str| {
        records.iter().find(|record| record["name"] == name).map(|record| record["shape"].clone())
    };
    assert_eq!(shape("lm_head.weight"), Some(json!([320, 64])));
    assert_eq!(shape("model.layers.0.mlp.down_proj.q_weight"), Some(json!([16, 64])), "transposed");
    assert_eq!(
        shape("model.layers.1.mlp.down_proj.q_weight"),
        Some(json!([64, 16])),
        "three bits: groups of 40"
    );
    assert_eq!(shape("model.layers.1.mlp.gate_up_proj.weight"), Some(json!([256, 64])));
    assert_eq!(shape("model.layers.1.self_attn.o_proj.q_weight"), Some(json!([64, 8])));

    assert!(packlight!("verify", bundle, "--all").ok().starts_with("ok"));
    let report =
        packlight!("run", bundle, "--tokens", "5,6,7", "-n", "4", "--json", "--device", "cpu")
            .json();
    assert_eq!(report["tokens"].as_array().unwrap().len(), 4);
}

#[test]
fn overrides_that_do_not_apply() {
    let refused = |rule: &str, words: &[&str]| {
        let error =
            packlight!("convert", fixture("llama"), "--dry-run", "--override", rule).fails(2);
        for word in words {
            assert!(error.contains(word), "`{word}` is not in: {error}");
        }
    };
    refused("no_such_weight=q0f16", &["no_such_weight", "matches no weight", "--dry-run"]);
    refused("(=q0f16", &["`(`", "regular expression"]);
    refused("down_proj=q5", &["q5", "known schemes: q4f16_1"]);
    refused("down_proj", &["REGEX=SCHEME"]);
    let folder = TempDir::new().unwrap();
    let recipe = folder.path().join("recipe.toml");
    fs_err::write(&recipe, "[[override]]\npattern = 'x'\nscheme = 'q0f16'\ncolour = 'red'\n")
        .unwrap();
    let error = packlight!("convert", fixture("llama"), "--dry-run", "--recipe", recipe).fails(2);
    assert!(error.contains("colour") && error.contains("[[override]]"), "{error}");
}
