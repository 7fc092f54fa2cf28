//! Is a bundle what its manifests say? Sizes, hashes, and the manifests against each other.

use std::collections::BTreeMap;
use std::io::Read;

use md5::{Digest as _, Md5};
use packlight_formats::digest::{hex, sha256};
use packlight_formats::manifest::packlight::{self, PACKLIGHT, Packlight};
use packlight_formats::manifest::tensor_cache::{NDARRAY_CACHE, TENSOR_CACHE, TensorCache};
use packlight_formats::quant::Assignment;
use rayon::prelude::*;

use crate::error::PackError;
use crate::files::Files;

/// What to check beyond chunk hashes.
#[derive(Clone, Copy, Debug, Default)]
pub struct VerifyOptions {
    /// Also the MD5 of whole shards.
    pub md5: bool,
    /// Files that no manifest names are no problem.
    pub allow_extra: bool,
}

/// What was checked and what was found.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Verification {
    /// Files that a manifest names.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Chunks whose SHA-256 was compared.
    pub chunks: usize,
    /// Shards whose MD5 was compared.
    pub md5_shards: usize,
    /// SHA-256 of packlight.json; none for a plain MLC bundle.
    pub sha256: Option<String>,
    /// Nothing here means that all is well.
    pub problems: Vec<Problem>,
}

/// One thing wrong with a bundle.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, thiserror::Error)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Problem {
    #[error("`{file}` is missing")]
    Missing { file: String },
    #[error("`{file}` cannot be read: {reason}")]
    Unreadable { file: String, reason: String },
    #[error("`{file}` has {found} bytes, expected {expected}")]
    WrongSize { file: String, found: u64, expected: u64 },
    #[error(
        "`{file}` chunk {chunk} (bytes {start}..{end}) does not have the SHA-256 of the manifest"
    )]
    WrongChunk { file: String, chunk: usize, start: u64, end: u64 },
    #[error("`{file}` does not have the MD5 of tensor-cache.json")]
    WrongMd5 { file: String },
    #[error("`{file}` is in the folder, but in no manifest")]
    Stray { file: String },
    #[error("{reason}")]
    Manifests { reason: String },
}

/// Checks a bundle, each file read once: ours by its chunk hashes, a plain MLC bundle by its MD5 sums.
pub fn verify<F: Files + ?Sized>(
    files: &F,
    options: VerifyOptions,
) -> Result<Verification, PackError> {
    let cache = read(files, TENSOR_CACHE)?;
    if let Some(json) = read(files, PACKLIGHT)? {
        return verify_packlight(files, options, &json, cache.as_deref());
    }
    // Until TVM 0.22 MLC-LLM wrote it under its old name only.
    let cache = if cache.is_some() { cache } else { read(files, NDARRAY_CACHE)? };
    match cache {
        Some(cache) => verify_mlc(files, &cache),
        None => Err(PackError::NotABundle(files.place())),
    }
}

fn verify_packlight<F: Files + ?Sized>(
    files: &F,
    options: VerifyOptions,
    json: &[u8],
    cache_json: Option<&[u8]>,
) -> Result<Verification, PackError> {
    let parsed = Packlight::parse(json).and_then(|manifest| Ok((manifest.assignment()?, manifest)));
    let (assignment, manifest) = match parsed {
        Ok(parsed) => parsed,
        // Nothing else can be checked against a manifest that contradicts itself.
        Err(error) => return Ok(Verification::failed(json, error.to_string())),
    };
    let cache = cache_json.map(TensorCache::parse).transpose();
    let shards = match &cache {
        Ok(Some(cache)) if options.md5 => cache.records.as_slice(),
        _ => &[],
    };
    let expected = manifest.files.iter().map(|file| Expected {
        path: &file.path,
        bytes: file.bytes,
        chunk_bytes: manifest.chunk_bytes,
        sha256: &file.sha256,
        md5: shards.iter().find(|shard| shard.data_path == file.path).map(|shard| &*shard.md5),
    });
    let mut checked = check_all(files, expected.collect())?;
    match cache {
        Ok(None) => checked.problems.push(Problem::Missing { file: TENSOR_CACHE.into() }),
        Ok(Some(cache)) => checked.problems.extend(agree(files, &manifest, &assignment, &cache)),
        Err(error) => {
            checked.problems.push(Problem::Manifests { reason: error.to_string() });
        }
    }
    if !options.allow_extra {
        let known = |name: &String| name == PACKLIGHT || manifest.file(name).is_some();
        let names = files.names()?.unwrap_or_default();
        let strays = names.into_iter().filter(|name| !known(name));
        checked.problems.extend(strays.map(|file| Problem::Stray { file }));
    }
    checked.problems.sort();
    checked.problems.dedup();
    let bytes = manifest.files.iter().map(|file| file.bytes).sum::<u64>() + json.len() as u64;
    Ok(Verification {
        files: manifest.files.len() + 1,
        bytes,
        chunks: checked.chunks,
        md5_shards: checked.md5_shards,
        sha256: Some(sha256(json)),
        problems: checked.problems,
    })
}

/// A plain MLC bundle has one hash per shard and says nothing of its other files.
fn verify_mlc<F: Files + ?Sized>(files: &F, json: &[u8]) -> Result<Verification, PackError> {
    let cache = match TensorCache::parse(json) {
        Ok(cache) => cache,
        Err(error) => {
            let failed = Verification::failed(json, error.to_string());
            return Ok(Verification { sha256: None, ..failed });
        }
    };
    let expected = cache.records.iter().map(|shard| Expected {
        path: &shard.data_path,
        bytes: shard.nbytes,
        // Only the pieces it is read in.
        chunk_bytes: packlight::CHUNK_BYTES,
        sha256: &[],
        md5: Some(&shard.md5),
    });
    let checked = check_all(files, expected.collect())?;
    Ok(Verification {
        files: cache.records.len(),
        bytes: cache.records.iter().map(|shard| shard.nbytes).sum(),
        chunks: 0,
        md5_shards: checked.md5_shards,
        sha256: None,
        problems: checked.problems,
    })
}

/// What a manifest says of a file.
struct Expected<'a> {
    path: &'a str,
    bytes: u64,
    chunk_bytes: u64,
    /// Of each chunk, where the manifest has them.
    sha256: &'a [String],
    md5: Option<&'a str>,
}

#[derive(Default)]
struct Checked {
    chunks: usize,
    md5_shards: usize,
    problems: Vec<Problem>,
}

fn check_all<F: Files + ?Sized>(
    files: &F,
    expected: Vec<Expected<'_>>,
) -> Result<Checked, PackError> {
    let checked = expected.into_par_iter().map(|expected| check(files, &expected));
    let checked: Vec<Checked> = checked.collect::<Result<_, PackError>>()?;
    Ok(checked.into_iter().fold(Checked::default(), |mut all, one| {
        all.chunks += one.chunks;
        all.md5_shards += one.md5_shards;
        all.problems.extend(one.problems);
        all
    }))
}

/// Reads a file once. One of the wrong size is not compared further.
fn check<F: Files + ?Sized>(files: &F, expected: &Expected<'_>) -> Result<Checked, PackError> {
    let Expected { path, bytes, chunk_bytes, sha256: hashes, md5 } = *expected;
    let file = path.to_owned();
    let only = |problem| Ok(Checked { problems: vec![problem], ..Checked::default() });
    let unreadable = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => Ok(Problem::Missing { file: file.clone() }),
        std::io::ErrorKind::InvalidData => {
            Ok(Problem::Unreadable { file: file.clone(), reason: error.to_string() })
        }
        _ => Err(PackError::Io(error)),
    };
    let mut reader = match files.open(path, Some(bytes)) {
        Ok(reader) => reader,
        Err(error) => return only(unreadable(error)?),
    };
    let (mut checked, mut sum, mut found) = (Checked::default(), Md5::new(), 0);
    let mut chunk = Vec::new();
    for i in 0.. {
        chunk.clear();
        // A byte beyond the end is looked for, and no more.
        let limit = if found < bytes { chunk_bytes.min(bytes - found) } else { 1 };
        if let Err(error) = reader.by_ref().take(limit).read_to_end(&mut chunk) {
            return only(unreadable(error)?);
        }
        let (start, end) = (found, found + chunk.len() as u64);
        found = end;
        if let Some(expected) = hashes.get(i) {
            checked.chunks += 1;
            if sha256(&chunk) != *expected {
                let file = file.clone();
                checked.problems.push(Problem::WrongChunk { file, chunk: i, start, end });
            }
        }
        if md5.is_some() {
            sum.update(&chunk);
        }
        if chunk.is_empty() || found > bytes {
            break;
        }
    }
    if found != bytes {
        let found = files.size(path)?.unwrap_or(found);
        return only(Problem::WrongSize { file, found, expected: bytes });
    }
    if let Some(expected) = md5 {
        checked.md5_shards = 1;
        if hex(&sum.finalize()) != expected {
            checked.problems.push(Problem::WrongMd5 { file });
        }
    }
    Ok(checked)
}

/// A whole file, or nothing where there is none.
fn read<F: Files + ?Sized>(files: &F, path: &str) -> Result<Option<Vec<u8>>, PackError> {
    let mut bytes = Vec::new();
    match files.open(path, None).and_then(|mut file| file.read_to_end(&mut bytes)) {
        Ok(_) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The two manifests name the same shards, and the shards hold what the model needs.
fn agree<F: Files + ?Sized>(
    files: &F,
    manifest: &Packlight,
    assignment: &Assignment,
    cache: &TensorCache,
) -> Vec<Problem> {
    let mut reasons = Vec::new();
    for shard in &cache.records {
        let (path, nbytes) = (&shard.data_path, shard.nbytes);
        match manifest.file(path) {
            Some(file) if file.bytes == nbytes => {}
            Some(file) => {
                reasons.push(format!(
                    "{TENSOR_CACHE} gives `{path}` {nbytes} bytes, {PACKLIGHT} {}",
                    file.bytes
                ));
            }
            None => reasons.push(format!("{TENSOR_CACHE} names `{path}`, {PACKLIGHT} does not")),
        }
    }
    let records = cache.records.iter().flat_map(|shard| &shard.records);
    let mut held: BTreeMap<String, _> =
        records.map(|record| (record.name.clone(), record.spec())).collect();
    for weight in manifest.model.weights() {
        for record in assignment.storage(weight).records() {
            if held.remove(&record.name).as_ref() != Some(record) {
                let name = &record.name;
                reasons
                    .push(format!("{TENSOR_CACHE} does not hold `{name}` as the model needs it"));
            }
        }
    }
    let unused = |name| format!("{TENSOR_CACHE} holds `{name}`, which the model does not use");
    reasons.extend(held.keys().map(unused));
    let bytes = |name: &str| read(files, name).ok().flatten();
    if manifest.file(NDARRAY_CACHE).is_some() && bytes(NDARRAY_CACHE) != bytes(TENSOR_CACHE) {
        reasons.push(format!("{NDARRAY_CACHE} differs from {TENSOR_CACHE}"));
    }
    reasons.into_iter().map(|reason| Problem::Manifests { reason }).collect()
}

impl Verification {
    fn failed(json: &[u8], reason: String) -> Self {
        Self {
            files: 1,
            bytes: json.len() as u64,
            chunks: 0,
            md5_shards: 0,
            sha256: Some(sha256(json)),
            problems: vec![Problem::Manifests { reason }],
        }
    }
}
