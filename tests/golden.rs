//! Bundles are byte for byte what MLC-LLM's own `convert_weight` wrote.
//!
//! `tests/golden/<name>` holds the checkpoints, `mlc.sha256` the hashes of MLC's files (how they were made:
//! `tests/golden/README.md`).

use std::collections::BTreeMap;

use packlight_formats::digest::sha256;
use packlight_formats::quant::Scheme;
use tempfile::TempDir;

use crate::packlight;
use crate::support::repo;

/// Expected files, `name -> hash`, by checkpoint and scheme.
fn goldens() -> BTreeMap<(String, String), BTreeMap<String, String>> {
    let list = fs_err::read_to_string(repo("tests/golden/mlc.sha256")).unwrap();
    let mut goldens: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
    for line in list.lines() {
        let (hash, path) = line.split_once("  ").unwrap();
        let [checkpoint, scheme, file] = path.split('/').collect::<Vec<_>>().try_into().unwrap();
        goldens
            .entry((checkpoint.into(), scheme.into()))
            .or_default()
            .insert(file.into(), hash.into());
    }
    goldens
}

#[test]
fn every_golden_is_reproduced() {
    let mut compared = 0;
    for ((checkpoint, scheme), files) in goldens() {
        let source = repo("tests/golden").join(&checkpoint);
        let has_weights = ["model.safetensors", "model.safetensors.index.json"]
            .iter()
            .any(|name| source.join(name).is_file());
        if Scheme::find(&scheme).is_none() || !has_weights {
            continue;
        }
        let folder = TempDir::new().unwrap();
        let bundle = folder.path().join("bundle");
        packlight!("convert", source, "-o", bundle, "--scheme", scheme, "--codes", "mlc").ok();
        for (file, expected) in &files {
            let bytes = fs_err::read(bundle.join(file)).unwrap();
            assert_eq!(sha256(&bytes), *expected, "{checkpoint} {scheme} {file}");
            // Clients older than web-llm 0.2.80 look for the same bytes under the old name.
            if let Some(rest) = file.strip_prefix("tensor-cache") {
                assert_eq!(
                    fs_err::read(bundle.join(format!("ndarray-cache{rest}"))).unwrap(),
                    bytes
                );
            }
            compared += 1;
        }
        let shards = |name: &str| name.starts_with("params_shard_");
        let written = fs_err::read_dir(&bundle)
            .unwrap()
            .filter(|e| shards(e.as_ref().unwrap().file_name().to_str().unwrap()));
        assert_eq!(
            written.count(),
            files.keys().filter(|name| shards(name)).count(),
            "{checkpoint} {scheme}"
        );
    }
    assert_eq!(compared, EXPECTED_FILES, "a golden was left out, or came in: say so here");
}

/// Files of the goldens whose scheme and architecture are supported.
const EXPECTED_FILES: usize = 98;

#[test]
fn the_checkpoint_folder_is_never_written_to() {
    let folder = crate::support::copy(&repo("tests/golden/qwen3"));
    let before: BTreeMap<_, _> = listing(folder.path());
    let (_bundle, _) = crate::support::converted(folder.path());
    assert_eq!(listing(folder.path()), before);
}

fn listing(folder: &std::path::Path) -> BTreeMap<std::ffi::OsString, (u64, std::time::SystemTime)> {
    let entries = fs_err::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|e| {
            (
                e.file_name(),
                (e.metadata().unwrap().len(), e.metadata().unwrap().modified().unwrap()),
            )
        })
        .collect()
}
