//! Bundles and checkpoints over HTTP, from hosts with every fault.

mod cache;
mod commands;
mod faults;
mod host;
mod hub;
mod probe;
mod serve;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use packlight_formats::digest::sha256;
use packlight_http::{Cache, Client, HttpError, Hub, Policy, Remote};
use serde_json::json;
use tempfile::TempDir;

use crate::packlight;
use crate::support::{edit_json, fixture};

/// Small enough that shards have several.
const CHUNK: usize = 4096;

/// A bundle of several shards, each of several chunks.
fn bundle() -> &'static Path {
    static BUNDLE: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    &BUNDLE
        .get_or_init(|| {
            let folder = TempDir::new().unwrap();
            let path = folder.path().join("bundle");
            let args = ["--codes", "mlc", "--shard-bytes", "20000"];
            packlight!("convert", fixture("llama"), "-o", path, args[0], args[1], args[2], args[3])
                .ok();
            edit_json(&path.join("packlight.json"), |manifest| {
                manifest["chunk_bytes"] = json!(CHUNK);
                for file in manifest["files"].as_array_mut().unwrap() {
                    let bytes = fs_err::read(path.join(file["path"].as_str().unwrap())).unwrap();
                    file["sha256"] = bytes.chunks(CHUNK).map(sha256).collect();
                }
            });
            (folder, path)
        })
        .1
}

/// Every file of a folder under the path that a URL has.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs_err::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let file = |entry: fs_err::DirEntry| {
        (format!("/{}", entry.file_name().to_str().unwrap()), fs_err::read(entry.path()).unwrap())
    };
    entries.map(file).collect()
}

/// Impatient enough for a test.
fn policy() -> Policy {
    Policy {
        attempts: 3,
        first_pause: Duration::from_millis(1),
        longest_pause: Duration::from_secs(1),
        connect: Duration::from_secs(5),
        silence: Duration::from_millis(500),
    }
}

fn client() -> Client {
    Client::new(Hub::new("https://hub.invalid", None), policy())
}

fn open(url: &str, cache: &Path) -> Result<Remote, HttpError> {
    Remote::open(client(), url.into(), Cache::new(cache))
}

/// Reads a whole bundle: shards as a runner does, announced, then every file.
fn read_all(remote: &Remote) -> Result<BTreeMap<String, Vec<u8>>, HttpError> {
    let names: Vec<String> = files(bundle()).into_keys().collect();
    let shards: Vec<&str> =
        names.iter().filter(|name| name.contains("params_shard")).map(|name| &name[1..]).collect();
    remote.announce(&shards);
    let mut read = BTreeMap::new();
    for name in &names {
        read.insert(name.clone(), remote.file(&name[1..])?.unwrap());
    }
    Ok(read)
}

/// Every chunk in a cache is what its name says.
#[track_caller]
fn assert_sound(cache: &Path) -> usize {
    let mut count = 0;
    let Ok(folders) = fs_err::read_dir(cache.join("chunks")) else { return 0 };
    for folder in folders {
        for chunk in fs_err::read_dir(folder.unwrap().path()).unwrap() {
            let path = chunk.unwrap().path();
            let bytes = fs_err::read(&path).unwrap();
            assert_eq!(path.file_name().unwrap().to_str().unwrap(), sha256(&bytes));
            count += 1;
        }
    }
    count
}
