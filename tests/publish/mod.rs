//! Bundles into object stores: S3's protocol on loopback, and folders.

mod faults;
mod files;
mod releases;
mod s3;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use packlight_formats::digest::sha256;
use packlight_http::{Cache, Client, Hub, Policy, Remote};
use serde_json::{Value, json};
use tempfile::TempDir;

use self::s3::{KEY, S3, SECRET};
use crate::support::{Ran, command, contents, edit_json, fixture, ran};

/// Bundles of one checkpoint: two releases, under plain names and under hashed ones.
struct Bundles {
    folder: TempDir,
}

impl Bundles {
    fn get() -> &'static Self {
        static BUNDLES: OnceLock<Bundles> = OnceLock::new();
        BUNDLES.get_or_init(|| {
            let folder = TempDir::new().unwrap();
            let checkpoint = fixture("llama");
            for (release, scheme) in [("old", "q4f16_1"), ("new", "q4f32_1")] {
                for names in ["plain", "hashed"] {
                    let bundle = folder.path().join(format!("{release}-{names}"));
                    let mut args = vec!["convert", checkpoint.to_str().unwrap()];
                    args.extend(["-o", bundle.to_str().unwrap(), "--scheme", scheme]);
                    args.extend(["--codes", "mlc", "--shard-bytes", "20000", "--names", names]);
                    crate::support::packlight(args).ok();
                }
            }
            Self { folder }
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

fn bundle(name: &str) -> PathBuf {
    Bundles::get().path(name)
}

/// A copy of a bundle with a file that is sent in parts.
fn with_large_file(name: &str) -> TempDir {
    let copy = crate::support::copy(&bundle(name));
    let bytes: Vec<u8> =
        (0..20_u32 << 20).map(|i| i.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    fs_err::write(copy.path().join("params_shard_99.bin"), &bytes).unwrap();
    edit_json(&copy.path().join("packlight.json"), |manifest| {
        let chunks: Vec<String> = bytes.chunks(8 << 20).map(sha256).collect();
        manifest["files"].as_array_mut().unwrap().insert(
            0,
            json!({
                "path": "params_shard_99.bin",
                "bytes": bytes.len(),
                "media_type": "application/octet-stream",
                "sha256": chunks,
            }),
        );
    });
    copy
}

/// `packlight publish BUNDLE URL ...` with the test's credentials.
fn publishing(server: &S3, bundle: &Path, url: &str, more: &[&str]) -> Command {
    let mut args = vec!["publish", bundle.to_str().unwrap(), url];
    args.extend(more);
    let mut command = command(args);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("AWS_") {
            command.env_remove(name);
        }
    }
    command.env("AWS_ENDPOINT_URL", server.endpoint());
    command.env("AWS_ACCESS_KEY_ID", KEY).env("AWS_SECRET_ACCESS_KEY", SECRET);
    command
}

/// The same, done. Whatever comes of it, no secret is told.
#[track_caller]
fn publish(server: &S3, bundle: &Path, prefix: &str, more: &[&str]) -> Ran {
    let mut command = publishing(server, bundle, &format!("s3://bucket/{prefix}"), more);
    let ran = ran(&command.output().unwrap());
    for secret in [KEY, SECRET, "Signature="] {
        assert!(!ran.stdout.contains(secret) && !ran.stderr.contains(secret), "{ran:?}");
    }
    ran
}

/// Its report.
#[track_caller]
fn report(server: &S3, bundle: &Path, prefix: &str, more: &[&str]) -> Value {
    let mut args = vec!["--json"];
    args.extend(more);
    publish(server, bundle, prefix, &args).json()
}

fn names(value: &Value) -> Vec<&str> {
    value.as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect()
}

/// Objects under a prefix; what the server itself keeps lies elsewhere.
fn objects(server: &S3, prefix: &str) -> BTreeMap<String, Vec<u8>> {
    contents(&server.objects(prefix))
}

/// Reads everything that is published at a URL as packlight's readers do, every chunk compared with its hash. `None`
/// where there is no release.
fn read(url: &str) -> Result<Option<(String, usize)>, packlight_http::HttpError> {
    let cache = TempDir::new().unwrap();
    let client = Client::new(Hub::new("https://hub.invalid", None), Policy::default());
    let remote = Remote::open(client, url.into(), Cache::new(cache.path()))?;
    let Some(json) = remote.file("packlight.json")? else { return Ok(None) };
    let manifest: Value = serde_json::from_slice(&json).unwrap();
    let files = manifest["files"].as_array().unwrap();
    let read = files.iter().filter(|file| file.get("alias_of").is_none());
    let mut bytes = 0;
    for file in read {
        bytes += remote.file(file["path"].as_str().unwrap())?.unwrap().len();
    }
    Ok(Some((sha256(&json), bytes)))
}

fn identity(bundle: &Path) -> String {
    sha256(&fs_err::read(bundle.join("packlight.json")).unwrap())
}
