//! Running the binary, and small checkpoints to run it on.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use md5::{Digest as _, Md5};
use packlight_formats::digest;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::Value;
use tempfile::TempDir;

/// A path inside the repository.
pub(crate) fn repo(path: impl AsRef<Path>) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

pub(crate) fn fixture(name: &str) -> PathBuf {
    repo("tests/fixtures").join(name)
}

/// What a command printed and how it ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) code: i32,
}

impl Ran {
    /// Stdout of a command that must have succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(
            self.code, 0,
            "exit {}\nstdout: {}\nstderr: {}",
            self.code, self.stdout, self.stderr
        );
        self.stdout
    }

    /// JSON on stdout.
    #[track_caller]
    pub(crate) fn json(self) -> Value {
        serde_json::from_str(&self.ok()).unwrap()
    }

    /// Stderr of a command that must have failed with that code.
    #[track_caller]
    pub(crate) fn fails(self, code: i32) -> String {
        assert_eq!(
            self.code, code,
            "exit {}\nstdout: {}\nstderr: {}",
            self.code, self.stdout, self.stderr
        );
        self.stderr
    }
}

/// Runs `packlight`; each argument is one element.
pub(crate) fn packlight<I, S>(args: I) -> Ran
where
    I: IntoIterator<Item = S>,
    S: AsRef<std::ffi::OsStr>,
{
    ran(&command(args).output().unwrap())
}

/// The same with something on standard input.
pub(crate) fn packlight_reading<I, S>(args: I, input: impl AsRef<[u8]>) -> Ran
where
    I: IntoIterator<Item = S>,
    S: AsRef<std::ffi::OsStr>,
{
    let pipe = std::process::Stdio::piped;
    let mut child = command(args).stdin(pipe()).stdout(pipe()).stderr(pipe()).spawn().unwrap();
    // Who does not want to read it all says so by other means.
    let _ = child.stdin.take().unwrap().write_all(input.as_ref());
    ran(&child.wait_with_output().unwrap())
}

/// `packlight`, ready to run.
pub(crate) fn command<I, S>(args: I) -> Command
where
    I: IntoIterator<Item = S>,
    S: AsRef<std::ffi::OsStr>,
{
    let mut command = Command::new(env!("CARGO_BIN_EXE_packlight"));
    // Mesa's device-select layer complains on stderr without it.
    let runtime =
        std::env::var_os("XDG_RUNTIME_DIR").unwrap_or_else(|| std::env::temp_dir().into());
    command.args(args).env("XDG_RUNTIME_DIR", runtime);
    command
}

pub(crate) fn ran(output: &Output) -> Ran {
    let Output { status, stdout, stderr } = output;
    Ran {
        stdout: String::from_utf8(stdout.clone()).unwrap(),
        stderr: String::from_utf8(stderr.clone()).unwrap(),
        code: status.code().unwrap_or(-1),
    }
}

/// `packlight` with arguments of several types.
#[macro_export]
macro_rules! packlight {
    ($($arg:expr),* $(,)?) => {
        $crate::support::packlight([$(std::ffi::OsStr::new(&$arg)),*])
    };
}

/// Converts a checkpoint with MLC's codes into a folder of its own.
#[track_caller]
pub(crate) fn converted(checkpoint: &Path) -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let bundle = folder.path().join("bundle");
    packlight!("convert", checkpoint, "-o", bundle, "--codes", "mlc").ok();
    (folder, bundle)
}

/// Whether there is an adapter. Without one GPU tests are skipped, loudly; with `REQUIRE_GPU=1` they fail.
pub(crate) fn gpu() -> bool {
    let adapters = packlight!("devices", "--json").json();
    let found = adapters.as_array().is_some_and(|list| !list.is_empty());
    let required = std::env::var_os("REQUIRE_GPU").is_some_and(|value| value == "1");
    assert!(found || !required, "REQUIRE_GPU=1, but there is no adapter");
    if !found {
        eprintln!("SKIPPED: no WebGPU adapter; the GPU half of this test did not run");
    }
    found
}

/// Whether the preferred adapter has a feature, as `devices --json` names it; said loudly where it has not.
pub(crate) fn gpu_with(feature: &str) -> bool {
    if !gpu() {
        return false;
    }
    let adapters = packlight!("devices", "--json").json();
    let value = &adapters[0]["features"][feature];
    let found = *value != Value::Null && *value != Value::Bool(false);
    if !found {
        eprintln!("SKIPPED: the adapter has no {feature}");
    }
    found
}

/// A writable copy of a folder.
pub(crate) fn copy(folder: &Path) -> TempDir {
    let copy = TempDir::new().unwrap();
    for entry in fs_err::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        fs_err::write(copy.path().join(path.file_name().unwrap()), fs_err::read(&path).unwrap())
            .unwrap();
    }
    copy
}

/// Every file of a folder.
pub(crate) fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs_err::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let files = entries.filter(|entry| entry.path().is_file());
    files.map(|e| (e.file_name().into_string().unwrap(), fs_err::read(e.path()).unwrap())).collect()
}

/// Reads a JSON file, changes it and writes it back.
pub(crate) fn edit_json(path: &Path, edit: impl FnOnce(&mut Value)) {
    let mut value = serde_json::from_slice(&fs_err::read(path).unwrap()).unwrap();
    edit(&mut value);
    fs_err::write(path, serde_json::to_vec(&value).unwrap()).unwrap();
}

/// Changes some bytes of a record of a bundle, whose hashes are wrong then: see [`rehash`].
pub(crate) fn edit_record(bundle: &Path, name: &str, edit: impl FnOnce(&mut [u8])) {
    let cache = fs_err::read(bundle.join("tensor-cache.json")).unwrap();
    let cache: Value = serde_json::from_slice(&cache).unwrap();
    let shards = cache["records"].as_array().unwrap();
    let mut records = shards.iter().flat_map(|shard| {
        shard["records"].as_array().unwrap().iter().map(move |record| (shard, record))
    });
    let (shard, record) = records.find(|(_, record)| record["name"] == name).unwrap();
    let at = |key: &str| usize::try_from(record[key].as_u64().unwrap()).unwrap();
    let path = bundle.join(shard["dataPath"].as_str().unwrap());
    let mut bytes = fs_err::read(&path).unwrap();
    edit(&mut bytes[at("byteOffset")..][..at("nbytes")]);
    fs_err::write(&path, bytes).unwrap();
}

/// Changes the description of a bundle's model.
pub(crate) fn edit_model(bundle: &Path, edit: impl FnOnce(&mut Value)) {
    edit_json(&bundle.join("packlight.json"), |manifest| edit(&mut manifest["model"]));
}

/// Makes every hash of a bundle right again, of which each file is one chunk.
pub(crate) fn rehash(bundle: &Path) {
    let read = |path: &Value| fs_err::read(bundle.join(path.as_str().unwrap())).unwrap();
    let mut cache = Vec::new();
    edit_json(&bundle.join("tensor-cache.json"), |manifest| {
        for shard in manifest["records"].as_array_mut().unwrap() {
            shard["md5sum"] = digest::hex(&Md5::digest(read(&shard["dataPath"]))).into();
        }
        cache = serde_json::to_vec(manifest).unwrap();
    });
    fs_err::write(bundle.join("ndarray-cache.json"), &cache).unwrap();
    if !bundle.join("packlight.json").is_file() {
        return;
    }
    edit_json(&bundle.join("packlight.json"), |manifest| {
        for file in manifest["files"].as_array_mut().unwrap() {
            let bytes = read(&file["path"]);
            file["bytes"] = bytes.len().into();
            file["sha256"] = vec![digest::sha256(&bytes)].into();
        }
    });
}

/// A tensor of a safetensors file, held.
#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

/// Reads a safetensors file, changes its tensors and writes it back.
pub(crate) fn edit_tensors(path: &Path, edit: impl FnOnce(&mut Vec<Tensor>)) {
    let bytes = fs_err::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = |(name, view): (String, TensorView<'_>)| Tensor {
        name,
        dtype: view.dtype(),
        shape: view.shape().to_vec(),
        bytes: view.data().to_vec(),
    };
    let mut tensors: Vec<Tensor> = file.tensors().into_iter().map(tensor).collect();
    edit(&mut tensors);
    let views = tensors
        .iter()
        .map(|t| (&t.name, TensorView::new(t.dtype, t.shape.clone(), &t.bytes).unwrap()));
    fs_err::write(path, serialize(views, None).unwrap()).unwrap();
}

/// The f32 (or i32) tensor of that name.
pub(crate) fn floats(path: &Path, name: &str) -> Vec<f32> {
    four_bytes(path, name).into_iter().map(f32::from_le_bytes).collect()
}

pub(crate) fn integers(path: &Path, name: &str) -> Vec<i32> {
    four_bytes(path, name).into_iter().map(i32::from_le_bytes).collect()
}

fn four_bytes(path: &Path, name: &str) -> Vec<[u8; 4]> {
    let bytes = fs_err::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    file.tensor(name).unwrap().data().chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]).collect()
}
