//! `hf://`: bundles and checkpoints of a hub on loopback.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use packlight_formats::digest::{hex, sha256};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::host::{Answer, Asked, Host};
use super::{bundle, files};
use crate::packlight;
use crate::support::{Ran, repo};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const TOKEN: &str = "hf_very_secret";

/// What the hub answers for a repository `o/n` with these files at its root.
fn hub(root: &BTreeMap<String, Vec<u8>>) -> BTreeMap<String, Vec<u8>> {
    hub_at(COMMIT, root)
}

/// The same where its branch is at another commit.
fn hub_at(commit: &str, root: &BTreeMap<String, Vec<u8>>) -> BTreeMap<String, Vec<u8>> {
    let mut served = BTreeMap::new();
    let mut tree = vec![json!({ "type": "directory", "oid": "0", "size": 0, "path": "onnx" })];
    for (path, bytes) in root {
        let name = &path[1..];
        let size = bytes.len();
        tree.push(if name.ends_with(".safetensors") {
            let lfs = json!({ "oid": sha256(bytes), "size": size, "pointerSize": 134 });
            json!({ "type": "file", "oid": "1", "size": size, "path": name, "lfs": lfs })
        } else {
            json!({ "type": "file", "oid": git_blob(bytes), "size": size, "path": name })
        });
        for revision in ["main", commit] {
            served.insert(format!("/o/n/resolve/{revision}/{name}"), bytes.clone());
        }
    }
    let revision = json!({ "id": "o/n", "sha": commit, "siblings": [] }).to_string();
    for name in ["main", commit] {
        served.insert(format!("/api/models/o/n/revision/{name}"), revision.clone().into());
    }
    let tree = Value::from(tree).to_string();
    served.insert(format!("/api/models/o/n/tree/{commit}"), tree.into());
    served
}

fn git_blob(bytes: &[u8]) -> String {
    use sha1::{Digest as _, Sha1};
    let mut sha1 = Sha1::new_with_prefix(format!("blob {}\0", bytes.len()));
    sha1.update(bytes);
    hex(&sha1.finalize())
}

/// Runs the binary with the hub at an address, and a token.
fn with_hub(url: &str, cache: &Path, args: &[&str]) -> Ran {
    let output = Command::new(env!("CARGO_BIN_EXE_packlight"))
        .args(args)
        .env("HF_ENDPOINT", url)
        .env("HF_TOKEN", TOKEN)
        .env("XDG_CACHE_HOME", cache)
        .output()
        .unwrap();
    let ran = Ran {
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
        code: output.status.code().unwrap_or(-1),
    };
    assert!(!ran.stderr.contains(TOKEN) && !ran.stdout.contains(TOKEN));
    ran
}

fn checkpoint() -> BTreeMap<String, Vec<u8>> {
    let mut root = files(&repo("demo"));
    for stranger in ["/pytorch_model.bin", "/model.gguf", "/README.md"] {
        root.insert(stranger.into(), b"large and useless".to_vec());
    }
    root
}

fn same(bundle: &Path, other: &Path) {
    assert_eq!(files(bundle), files(other));
}

#[test]
fn a_checkpoint_converts_from_the_hub_as_from_a_folder() {
    let host = Host::new(hub(&checkpoint()), |_| Answer::Honest);
    let out = TempDir::new().unwrap();
    let (near, far, again) =
        (out.path().join("near"), out.path().join("far"), out.path().join("again"));
    packlight!("convert", repo("demo"), "-o", near).ok();
    let cache = out.path().join("cache");
    with_hub(&host.url(), &cache, &["convert", "hf://o/n", "-o", far.to_str().unwrap()]).ok();
    same(&near, &far);
    for stranger in ["README", "gguf", "pytorch"] {
        assert!(!host.log().iter().any(|asked| asked.path.contains(stranger)), "{stranger}");
    }
    // Once more, and the network is gone: the commit is known, its files are here.
    let url = host.url();
    drop(host);
    let args = ["convert", "hf://o/n", "-o", again.to_str().unwrap()];
    let ran = with_hub(&url, &cache, &args);
    assert!(
        ran.stderr.contains("note: going on with what was downloaded before"),
        "{}",
        ran.stderr
    );
    ran.ok();
    same(&near, &again);
    let listed = with_hub(&url, &cache, &["cache", "--json"]).json();
    assert_eq!(listed["held"][0]["kind"], "checkpoint");
    assert_eq!(listed["held"][0]["name"], "hf://o/n@main");
    with_hub(&url, &cache, &["cache", "--limit", "0"]).ok();
    assert!(!cache.join("packlight/checkpoints/o--n").join(COMMIT).exists());
}

/// What `packlight cache` prints: held or removed, by name.
fn names(listed: &Value, what: &str) -> Vec<String> {
    let list = listed[what].as_array().unwrap();
    list.iter().map(|cached| cached["name"].as_str().unwrap().to_owned()).collect()
}

/// The old commit is good for a day without a network until the new one is here, and then goes like any other.
#[test]
fn a_branch_moves() {
    const NEXT: &str = "89abcdef0123456789abcdef0123456789abcdef";
    let (cache, args) = (TempDir::new().unwrap(), ["convert", "hf://o/n", "--dry-run"]);
    let commits = cache.path().join("packlight/checkpoints/o--n");
    let host = Host::new(hub(&checkpoint()), |_| Answer::Honest);
    let (url, address) = (host.url(), host.address());
    with_hub(&url, cache.path(), &args).ok();
    drop(host);
    let moved = |answer: Answer| {
        let listener = std::net::TcpListener::bind(address).unwrap();
        Host::on(listener, hub_at(NEXT, &checkpoint()), move |asked: &Asked| {
            if asked.path.ends_with(".safetensors") { answer.clone() } else { Answer::Honest }
        })
    };
    let broken = moved(Answer::Status(404, vec![]));
    with_hub(&url, cache.path(), &args).fails(2);
    drop(broken);
    let offline = with_hub(&url, cache.path(), &args);
    assert!(offline.stderr.contains("note: going on with"), "{}", offline.stderr);
    offline.ok();

    let host = moved(Answer::Honest);
    with_hub(&url, cache.path(), &args).ok();
    drop(host);
    let held = with_hub(&url, cache.path(), &["cache", "--json"]).json();
    assert_eq!(names(&held, "held"), ["hf://o/n@main", &format!("hf://o/n@{COMMIT}")]);
    let bytes = held["held"][0]["bytes"].as_u64().unwrap().to_string();
    let limited = with_hub(&url, cache.path(), &["cache", "--limit", &bytes, "--json"]).json();
    assert_eq!(names(&limited, "removed"), [format!("hf://o/n@{COMMIT}")]);
    assert!(!commits.join(COMMIT).exists() && commits.join(NEXT).exists());
    with_hub(&url, cache.path(), &["cache", "--limit", "0"]).ok();
    assert_eq!(fs_err::read_dir(cache.path().join("packlight/checkpoints")).unwrap().count(), 0);
}

/// Two addresses of one commit share its folder.
#[test]
fn a_commit_counts_once() {
    let host = Host::new(hub(&checkpoint()), |_| Answer::Honest);
    let (cache, url) = (TempDir::new().unwrap(), host.url());
    let pinned = format!("hf://o/n@{COMMIT}");
    for address in [&pinned, "hf://o/n"] {
        with_hub(&url, cache.path(), &["convert", address, "--dry-run"]).ok();
    }
    let held = with_hub(&url, cache.path(), &["cache", "--json"]).json();
    let bytes = held["held"][0]["bytes"].as_u64().unwrap();
    assert_eq!(held["held"][1]["bytes"], bytes);
    let limit = bytes.to_string();
    let limited = with_hub(&url, cache.path(), &["cache", "--limit", &limit, "--json"]).json();
    assert_eq!((names(&limited, "removed").len(), names(&limited, "held").len()), (0, 2));
    let folder = cache.path().join("packlight/checkpoints/o--n").join(COMMIT);
    // A process that downloads has locked the file that grows.
    let growing = fs_err::File::create(folder.join("other.safetensors.partial")).unwrap();
    growing.file().lock().unwrap();
    let limited = with_hub(&url, cache.path(), &["cache", "--limit", "0", "--json"]).json();
    assert_eq!(names(&limited, "removed").len(), 0);
    drop(growing);
    let limited = with_hub(&url, cache.path(), &["cache", "--limit", "0", "--json"]).json();
    assert_eq!((names(&limited, "removed").len(), folder.exists()), (2, false));
}

/// Weights over several files: the index says which.
#[test]
fn the_index_names_the_files() {
    let mut root = files(&repo("tests/golden/llama-3file"));
    root.insert("/consolidated.safetensors".into(), b"the same again".to_vec());
    let host = Host::new(hub(&root), |_| Answer::Honest);
    let cache = TempDir::new().unwrap();
    with_hub(&host.url(), cache.path(), &["convert", "hf://o/n", "--dry-run"]).ok();
    let log = host.log();
    let weights = log.iter().filter(|asked| asked.path.ends_with(".safetensors"));
    assert_eq!(weights.count(), 3);
    assert!(!log.iter().any(|asked| asked.path.contains("consolidated")));
}

#[test]
fn a_checkpoint_download_goes_on_where_it_was() {
    let root = checkpoint();
    let size = root["/model.safetensors"].len();
    let broken = Host::new(hub(&root), move |asked: &Asked| {
        match (asked.path.ends_with("model.safetensors"), asked.nth) {
            (true, 0) => Answer::Drop(size / 2),
            (true, _) => Answer::Status(404, vec![]),
            _ => Answer::Honest,
        }
    });
    let cache = TempDir::new().unwrap();
    let args = ["convert", "hf://o/n", "--dry-run"];
    with_hub(&broken.url(), cache.path(), &args).fails(2);
    let host = Host::new(hub(&root), |_| Answer::Honest);
    with_hub(&host.url(), cache.path(), &args).ok();
    let log = host.log();
    let asked = log.iter().find(|asked| asked.path.ends_with("model.safetensors")).unwrap();
    assert_eq!(asked.headers["range"], format!("bytes={}-{}", size / 2, size - 1));
}

/// A byte that flips is found by the hash that the hub lists, for large files and small.
#[test]
fn a_checkpoint_is_checked() {
    for file in ["model.safetensors", "tokenizer.json"] {
        let host = Host::new(hub(&checkpoint()), move |asked: &Asked| {
            if asked.path.ends_with(file) { Answer::Flip } else { Answer::Honest }
        });
        let cache = TempDir::new().unwrap();
        let args = ["convert", "hf://o/n", "--dry-run"];
        let error = with_hub(&host.url(), cache.path(), &args).fails(2);
        assert!(error.contains(file) && error.contains("does not have the hash"), "{error}");
        assert!(error.contains("hint: run it again"), "{error}");
        let folder = cache.path().join("packlight/checkpoints/o--n").join(COMMIT);
        let left: Vec<_> =
            fs_err::read_dir(folder).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(left.iter().all(|name| !name.to_str().unwrap().starts_with(file)), "{left:?}");
    }
}

#[test]
fn a_bundle_on_the_hub_has_a_short_name() {
    let host = Host::new(hub(&files(bundle())), |_| Answer::Honest);
    let cache = TempDir::new().unwrap();
    let report = with_hub(&host.url(), cache.path(), &["inspect", "hf://o/n", "--json"]).json();
    assert_eq!(report["manifest"]["model"]["architecture"], "llama");
    with_hub(&host.url(), cache.path(), &["verify", "hf://o/n@main"]).ok();
    for asked in host.log() {
        assert_eq!(asked.headers["authorization"], format!("Bearer {TOKEN}"));
    }
}

/// The hub sends its large files from elsewhere, which has no business with the token.
#[test]
fn the_token_stays_at_home() {
    let served = hub(&files(bundle()));
    let elsewhere = Host::new(served.clone(), |_| Answer::Honest);
    let url = elsewhere.url();
    let home = Host::new(served, move |asked: &Asked| {
        if asked.is_shard() {
            Answer::Status(302, vec![("Location", format!("{url}{}", &asked.path[1..]))])
        } else {
            Answer::Honest
        }
    });
    let cache = TempDir::new().unwrap();
    with_hub(&home.url(), cache.path(), &["verify", "hf://o/n"]).ok();
    assert!(elsewhere.shard_requests() > 5);
    assert!(elsewhere.log().iter().all(|asked| !asked.headers.contains_key("authorization")));
    assert!(home.log().iter().all(|asked| asked.headers.contains_key("authorization")));
}

#[test]
fn a_closed_repository_asks_for_a_token() {
    let host = Host::new(BTreeMap::new(), |_| Answer::Status(401, vec![]));
    let cache = TempDir::new().unwrap();
    for args in [["convert", "hf://o/n", "--dry-run"].as_slice(), &["inspect", "hf://o/n"]] {
        let error = with_hub(&host.url(), cache.path(), args).fails(2);
        assert!(error.contains("refused (401)") && error.contains("HF_TOKEN"), "{error}");
    }
}

#[test]
fn a_repository_that_is_not_there_is_said() {
    let host = Host::new(BTreeMap::new(), |_| Answer::Honest);
    let cache = TempDir::new().unwrap();
    let error =
        with_hub(&host.url(), cache.path(), &["convert", "hf://o/typo", "--dry-run"]).fails(2);
    assert!(error.contains("`hf://o/typo@main` does not exist"), "{error}");
    assert!(error.contains("hint: check owner") && error.contains("HF_TOKEN"), "{error}");
}

/// Nobody who opens a page has a token, so a repository that needs one is no host for pages.
#[test]
fn a_private_repository_fails_the_probe() {
    let cors = ("Access-Control-Allow-Origin", "*".to_owned());
    let host = Host::new(hub(&files(bundle())), move |asked: &Asked| {
        if asked.headers.contains_key("authorization") {
            Answer::With(vec![cors.clone()])
        } else {
            Answer::Status(401, vec![])
        }
    });
    let cache = TempDir::new().unwrap();
    with_hub(&host.url(), cache.path(), &["inspect", "hf://o/n"]).ok();
    let error = with_hub(&host.url(), cache.path(), &["probe", "hf://o/n"]).fails(2);
    assert!(error.contains("refused (401)") && error.contains("let anyone read"), "{error}");
}

#[test]
fn what_is_no_checkpoint_is_said() {
    let root = BTreeMap::from([
        ("/config.json".into(), b"{}".to_vec()),
        ("/model.gguf".into(), b"GGUF".to_vec()),
    ]);
    let host = Host::new(hub(&root), |_| Answer::Honest);
    let cache = TempDir::new().unwrap();
    let error = with_hub(&host.url(), cache.path(), &["convert", "hf://o/n", "--dry-run"]).fails(2);
    assert!(
        error.contains("has no model.safetensors, but") && error.contains("model.gguf"),
        "{error}"
    );
}

#[test]
fn what_has_no_room_is_not_begun() {
    let mut served = hub(&checkpoint());
    let tree = format!("/api/models/o/n/tree/{COMMIT}");
    let mut entries: Value = serde_json::from_slice(&served[&tree]).unwrap();
    for entry in entries.as_array_mut().unwrap() {
        if entry["path"] == "model.safetensors" {
            entry["lfs"]["size"] = json!(1_u64 << 60);
        }
    }
    served.insert(tree, entries.to_string().into());
    let (host, out) = (Host::new(served, |_| Answer::Honest), TempDir::new().unwrap());
    let bundle = out.path().join("bundle");
    let args = ["convert", "hf://o/n", "-o", bundle.to_str().unwrap()];
    let error = with_hub(&host.url(), out.path(), &args).fails(2);
    assert!(error.contains("has room for") && error.contains("packlight cache --limit"), "{error}");
    assert!(!host.log().iter().any(|asked| asked.path.contains("/resolve/")), "{:?}", host.log());
}
