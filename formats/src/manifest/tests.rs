//! `packlight.json` from strangers: whatever is wrong in it is an error that names it.

use serde_json::{Value, json};

use super::Packlight;
use crate::digest::sha256;

const GIB: u64 = 1 << 30;

/// A shard in two parts, a whole one, a small file and its alias.
fn sound() -> Value {
    let hash = |text: &str| sha256(text.as_bytes());
    let part = |start: u64, end: u64| json!({"file": "params_shard_0.bin", "bytes": 150, "start": start, "end": end});
    json!({
        "schema_version": 1,
        "generator": {"name": "packlight", "version": "0.1.0"},
        "chunk_bytes": 64,
        "max_file_bytes": 100,
        "files": [
            {"path": "params_shard_0.bin.part000", "bytes": 100, "media_type": "x/y", "sha256": [hash("a"), hash("b")], "holds": part(0, 100)},
            {"path": "params_shard_0.bin.part001", "bytes": 50, "media_type": "x/y", "sha256": [hash("c")], "holds": part(100, 150)},
            {"path": "params_shard_1.bin", "bytes": 64, "media_type": "x/y", "sha256": [hash("d")]},
            {"path": "tensor-cache.json", "bytes": 0, "media_type": "x/y", "sha256": [hash("")]},
            {"path": "ndarray-cache.json", "bytes": 0, "media_type": "x/y", "sha256": [hash("")], "alias_of": "tensor-cache.json"},
        ],
    })
}

fn parse(manifest: &Value) -> Result<Packlight, String> {
    Packlight::parse(manifest.to_string().as_bytes()).map_err(|error| error.to_string())
}

#[track_caller]
fn refused(edit: impl FnOnce(&mut Value), reason: &str) {
    let mut manifest = sound();
    edit(&mut manifest);
    let error = parse(&manifest).expect_err("is refused");
    assert!(error.contains(reason), "`{reason}` is not in: {error}");
}

#[test]
fn files_of_the_bundle_are_found_through_their_parts() {
    let manifest = parse(&sound()).expect("is sound");
    let paths = |name| manifest.parts(name).map(|file| file.path.as_str()).collect::<Vec<_>>();
    assert_eq!(
        paths("params_shard_0.bin"),
        ["params_shard_0.bin.part000", "params_shard_0.bin.part001"]
    );
    assert_eq!(paths("params_shard_1.bin"), ["params_shard_1.bin"]);
    assert_eq!(manifest.size("params_shard_0.bin"), Some(150));
    assert_eq!(manifest.size("tensor-cache.json"), Some(0));
    // A part is no file of the bundle, and an alias is not the one to read.
    assert_eq!(manifest.size("params_shard_0.bin.part000"), None);
    assert_eq!(manifest.size("ndarray-cache.json"), None);
    assert!(manifest.about.is_none());
}

#[test]
fn what_it_writes_it_reads() {
    let manifest = parse(&sound()).expect("is sound");
    let text = serde_json::to_string(&manifest).expect("JSON");
    assert_eq!(Packlight::parse(text.as_bytes()).expect("is sound"), manifest);
    assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON"), sound());
}

#[test]
fn unknown_keys_and_versions() {
    refused(|m| m["surprise"] = json!(1), "surprise");
    refused(|m| m["files"][0]["surprise"] = json!(1), "surprise");
    refused(|m| m["files"][0]["holds"]["surprise"] = json!(1), "surprise");
    refused(|m| m["schema_version"] = json!(2), "schema_version 2");
    refused(|m| m["schema_version"] = json!("1"), "no schema_version");
    refused(|m| m["names"] = json!("pretty"), "pretty");
    refused(|m| m["scheme"] = json!("q4f16_1"), "belong together");
    refused(|m| m["rounding"] = json!("even"), "belong together");
}

#[test]
fn paths() {
    for path in [
        "../x",
        "/etc/passwd",
        "a/b",
        "a\\b",
        "C:x",
        "",
        ".",
        "..",
        ".hidden",
        "nul",
        "COM1.bin",
        "packlight.json",
        "PackLight.JSON",
        "params_shard_1.bin",
        "PARAMS_shard_1.bin",
        "a\u{0}b",
    ] {
        refused(|m| m["files"][3]["path"] = json!(path), "is not a file name of its own");
        if !path.to_lowercase().starts_with("params") {
            refused(|m| m["files"][0]["holds"]["file"] = json!(path), "is not a file name");
        }
    }
    refused(
        |m| {
            m["files"][0]["holds"]["file"] = json!("Tensor-Cache.json");
            m["files"][1]["holds"]["file"] = json!("Tensor-Cache.json");
        },
        "in case only",
    );
}

#[test]
fn hashes_and_sizes() {
    refused(|m| m["chunk_bytes"] = json!(0), "chunk_bytes");
    refused(|m| m["chunk_bytes"] = json!(GIB), "chunk_bytes");
    refused(|m| m["files"][0]["sha256"] = json!([]), "needs 2 chunk hashes, not 0");
    refused(|m| m["files"][3]["sha256"] = json!([]), "needs 1 chunk hashes, not 0");
    refused(|m| m["files"][2]["bytes"] = json!(65), "needs 2 chunk hashes, not 1");
    refused(|m| m["files"][2]["bytes"] = json!(u64::MAX), "chunk hashes, not 1");
    refused(|m| m["files"][2]["bytes"] = json!(-1), "-1");
    refused(|m| m["files"][2]["sha256"] = json!(["zz"]), "`zz` where a SHA-256 belongs");
    refused(|m| m["files"][2]["sha256"] = json!([sha256(b"").to_uppercase()]), "where a SHA-256");
    refused(|m| m["max_file_bytes"] = json!(99), "more than max_file_bytes, 99");
}

#[test]
fn parts() {
    let holds = |part: usize, key: &'static str, n: u64| {
        move |m: &mut Value| m["files"][part]["holds"][key] = json!(n)
    };
    refused(holds(0, "end", 101), "cannot hold bytes 0..101 of the 150");
    refused(holds(0, "start", 101), "cannot hold bytes 101..100");
    refused(holds(1, "end", 151), "cannot hold bytes 100..151 of the 150");
    refused(holds(1, "start", u64::MAX), "cannot hold");
    refused(holds(1, "bytes", 151), "disagree about its size: 150 and 151");
    refused(
        |m| {
            for part in [0, 1] {
                m["files"][part]["holds"]["bytes"] = json!(u64::MAX);
            }
        },
        "bytes 150..18446744073709551615 of `params_shard_0.bin` are in no file",
    );
    refused(
        |m| {
            holds(1, "start", 99)(m);
            holds(1, "end", 149)(m);
        },
        "that an earlier file holds",
    );
    refused(
        |m| {
            for part in [0, 1] {
                m["files"][part]["holds"]["bytes"] = json!(160);
            }
            holds(1, "start", 110)(m);
            holds(1, "end", 160)(m);
        },
        "bytes 100..110 of `params_shard_0.bin` are in no file",
    );
    let remove = |i: usize| move |m: &mut Value| drop(m["files"].as_array_mut().unwrap().remove(i));
    refused(remove(0), "bytes 0..100 of `params_shard_0.bin` are in no file");
    refused(remove(1), "bytes 100..150 of `params_shard_0.bin` are in no file");
    refused(
        |m| {
            let files = m["files"].as_array_mut().unwrap();
            files.swap(0, 1);
        },
        "bytes 0..100",
    );
    // A part may not be named like the whole that others hold, nor hold what another file is.
    refused(|m| m["files"][2]["path"] = json!("params_shard_0.bin"), "is held by");
    refused(|m| m["files"][1]["holds"]["file"] = json!("params_shard_1.bin"), "are in no file");
}

#[test]
fn aliases_and_compacted_files() {
    refused(|m| m["files"][4]["alias_of"] = json!("elsewhere"), "is no copy of a file `elsewhere`");
    refused(|m| m["files"][4]["alias_of"] = json!("params_shard_0.bin"), "is no copy");
    refused(|m| m["files"][4]["sha256"] = json!([sha256(b"x")]), "is no copy");
    refused(
        |m| {
            m["files"][4]["holds"] =
                json!({"file": "tensor-cache.json", "bytes": 0, "start": 0, "end": 0});
        },
        "is no copy",
    );
    refused(|m| m["compacted"] = json!(["tokenizer.json"]), "`tokenizer.json`, which is no file");
}

#[test]
fn hashed_names_name_their_content() {
    let mut manifest = sound();
    manifest["names"] = json!("hashed");
    let error = parse(&manifest).expect_err("is refused");
    assert!(error.contains("is not named by its content"), "{error}");
    let id = |text: &str| sha256(text.as_bytes())[..16].to_owned();
    let both = sha256((sha256(b"a") + &sha256(b"b")).as_bytes())[..16].to_owned();
    let whole = "params_shard_0.00112233445566aa.bin";
    for (i, id) in [both, id("c")].iter().enumerate() {
        manifest["files"][i]["path"] = json!(format!("params_shard_0.{id}.bin.part00{i}"));
        manifest["files"][i]["holds"]["file"] = json!(whole);
    }
    manifest["files"][2]["path"] = json!(format!("params_shard_1.{}.bin", id("d")));
    manifest["files"][3]["path"] = json!(format!("tensor-cache.{}.json", id("")));
    manifest["files"][3]["holds"] =
        json!({"file": "tensor-cache.json", "bytes": 0, "start": 0, "end": 0});
    parse(&manifest).expect("is sound");
    manifest["files"][2]["sha256"] = json!([sha256(b"other")]);
    let error = parse(&manifest).expect_err("is refused");
    assert!(error.contains("params_shard_1") && error.contains("whose id is"), "{error}");
}
