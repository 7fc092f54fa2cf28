//! Proof from outside: TVM's own reader finds in our bundles what we say is in them.

use std::path::{Path, PathBuf};
use std::process::Command;

use packlight_formats::Dtype;
use packlight_formats::digest::sha256;
use packlight_formats::manifest::TensorCache;
use packlight_formats::quant::SCHEMES;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::packlight;
use crate::support::repo;

const PACKAGES: [&str; 2] = ["apache-tvm==0.27.0.post1", "numpy"];

/// A Python with TVM, kept between runs; `None` where PyPI is out of reach.
fn python_with_tvm() -> Option<PathBuf> {
    let folder = repo("target/tvm-python");
    let python = folder.join("bin/python");
    let ready = folder.join("ready");
    if !ready.is_file() {
        let done =
            |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
        let made = done(Command::new("python3").args(["-m", "venv"]).arg(&folder))
            && done(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(PACKAGES));
        if !made {
            return None;
        }
        fs_err::write(ready, "").unwrap();
    }
    Some(python)
}

/// What our manifest and shards say, in the words of `tests/make/tvm_read.py`.
fn ours(bundle: &Path) -> Value {
    let cache =
        TensorCache::parse(&fs_err::read(bundle.join("tensor-cache.json")).unwrap()).unwrap();
    let mut tensors = json!({});
    for shard in &cache.records {
        let bytes = fs_err::read(bundle.join(&shard.data_path)).unwrap();
        for record in &shard.records {
            let start = usize::try_from(record.byte_offset).unwrap();
            let stored = &bytes[start..start + usize::try_from(record.nbytes).unwrap()];
            let expanded = match record.dtype {
                // Stored as bfloat16, whose missing half is zero.
                Dtype::Float32 => {
                    stored.chunks_exact(2).flat_map(|half| [0, 0, half[0], half[1]]).collect()
                }
                _ => stored.to_vec(),
            };
            tensors[&record.name] =
                json!([record.dtype.to_string(), record.shape, sha256(&expanded)]);
        }
    }
    tensors
}

#[test]
fn tvm_reads_the_same_tensors() {
    let Some(python) = python_with_tvm() else {
        eprintln!(
            "SKIPPED: no Python with venv and pip, or PyPI is out of reach: TVM's reader was not asked"
        );
        return;
    };
    for scheme in SCHEMES {
        let folder = TempDir::new().unwrap();
        let bundle = folder.path().join("bundle");
        packlight!("convert", repo("tests/fixtures/qwen2"), "-o", bundle, "--scheme", scheme.name)
            .ok();
        let output = Command::new(&python)
            .arg(repo("tests/make/tvm_read.py"))
            .arg(&bundle)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}: {}",
            scheme.name,
            String::from_utf8_lossy(&output.stderr)
        );
        let theirs: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(theirs, ours(&bundle), "{}", scheme.name);
    }
}
