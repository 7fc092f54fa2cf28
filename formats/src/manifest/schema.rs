//! `docs/packlight.schema.json` is generated from the types that read and write `packlight.json`.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use super::packlight::Wire;

fn schema() -> Value {
    let mut schema = schemars::schema_for!(Wire);
    schema.insert("description".into(), "What is in a bundle: docs/packlight-json.md".into());
    // The one version there is.
    let version = schema.pointer_mut("/properties/schema_version").expect("a property");
    version["const"] = 1.into();
    schema.to_value()
}

fn docs(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name)
}

#[test]
fn the_committed_schema_is_current() {
    let path = docs("packlight.schema.json");
    let text = serde_json::to_string_pretty(&schema()).expect("JSON") + "\n";
    if std::env::var_os("UPDATE_SCHEMA").is_some() {
        std::fs::write(&path, &text).expect("docs can be written");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == text, "the schema has changed: run this test with UPDATE_SCHEMA=1");
}

/// Every field of the manifest proper; the model's are described by the schema alone.
#[test]
fn the_documentation_names_every_field() {
    let text = std::fs::read_to_string(docs("packlight-json.md")).expect("the documentation");
    let schema = schema();
    let mut fields = BTreeSet::new();
    let mut add = |object: &Value| {
        fields.extend(object["properties"].as_object().expect("an object").keys().cloned());
    };
    add(&schema);
    for name in ["File", "Span", "Generator", "Override", "Provenance", "SourceFile", "Requires"] {
        add(&schema["$defs"][name]);
    }
    for field in fields {
        assert!(text.contains(&format!("`{field}`")), "packlight-json.md does not say `{field}`");
    }
}
