//! Two descriptions of a model, field by field.

use packlight_formats::model::Model;
use serde_json::Value;

/// The longest value that is shown whole.
const SHOWN: usize = 60;

/// Every field in which a bundle's description is not the checkpoint's.
pub(crate) fn differences(bundle: &Model, checkpoint: &Model) -> anyhow::Result<Vec<String>> {
    let [bundle, checkpoint] = [bundle, checkpoint].map(serde_json::to_value);
    let mut found = Vec::new();
    compare("model", &bundle?, &checkpoint?, &mut found);
    Ok(found)
}

fn compare(path: &str, bundle: &Value, checkpoint: &Value, found: &mut Vec<String>) {
    match (bundle, checkpoint) {
        (Value::Object(a), Value::Object(b)) => {
            let others = b.keys().filter(|key| !a.contains_key(*key));
            for key in a.keys().chain(others) {
                let [a, b] = [a, b].map(|object| object.get(key).unwrap_or(&Value::Null));
                compare(&format!("{path}.{key}"), a, b, found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (i, (a, b)) in a.iter().zip(b).enumerate() {
                compare(&format!("{path}[{i}]"), a, b, found);
            }
        }
        (a, b) if a != b => {
            found.push(format!(
                "{path} is {} in the bundle, {} by the checkpoint",
                shown(a),
                shown(b)
            ));
        }
        _ => {}
    }
}

fn shown(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= SHOWN {
        return text;
    }
    text.chars().take(SHOWN).chain("...".chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_field_that_differs_is_named() {
        let a = json!({ "layers": [{ "window": 512, "heads": 4 }, { "window": null }], "head": "tied" });
        let b = json!({ "layers": [{ "window": null, "heads": 4 }, { "window": null }], "head": { "own": 1 }, "cap": 2 });
        let mut found = Vec::new();
        compare("model", &a, &b, &mut found);
        let expected = [
            "model.layers[0].window is 512 in the bundle, null by the checkpoint",
            "model.head is \"tied\" in the bundle, {\"own\":1} by the checkpoint",
            "model.cap is null in the bundle, 2 by the checkpoint",
        ];
        assert_eq!(found, expected);
        found.clear();
        compare("model", &a, &a, &mut found);
        assert!(found.is_empty());
    }
}
