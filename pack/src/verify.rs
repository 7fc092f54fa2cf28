//! Is a bundle what its manifests say? Sizes, hashes, and the manifests against each other.

use std::collections::BTreeMap;
use std::io::Read;

use md5::{Digest as _, Md5};
use packlight_formats::digest::{hex, sha256};
use packlight_formats::manifest::packlight::{About, CHUNK_BYTES, PACKLIGHT};
use packlight_formats::manifest::tensor_cache::{NDARRAY_CACHE, TENSOR_CACHE};
use packlight_formats::manifest::{File, HEADERS, Packlight, TensorCache};
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
    if let Some(json) = read(files, PACKLIGHT)? {
        return verify_packlight(files, options, &json);
    }
    // Until TVM 0.22 MLC-LLM wrote it under its old name only.
    for name in [TENSOR_CACHE, NDARRAY_CACHE] {
        if let Some(cache) = read(files, name)? {
            return verify_mlc(files, &cache);
        }
    }
    Err(PackError::NotABundle(files.place()))
}

fn verify_packlight<F: Files + ?Sized>(
    files: &F,
    options: VerifyOptions,
    json: &[u8],
) -> Result<Verification, PackError> {
    let parsed = Packlight::parse(json).and_then(|manifest| {
        let assignment = manifest.about.as_ref().map(About::assignment).transpose()?;
        Ok((assignment, manifest))
    });
    let (assignment, manifest) = match parsed {
        Ok(parsed) => parsed,
        // Nothing else can be checked against a manifest that contradicts itself.
        Err(error) => return Ok(Verification::failed(json, error.to_string())),
    };
    let names = files.names()?;
    let cache = join(files, &manifest, TENSOR_CACHE)?;
    let cache = cache.as_deref().map(TensorCache::parse).transpose();
    let shards = match &cache {
        Ok(Some(cache)) if options.md5 => cache.records.as_slice(),
        _ => &[],
    };
    let expected = |file: &'_ File| Expected {
        path: file.path.clone(),
        bytes: file.bytes,
        chunk_bytes: manifest.chunk_bytes,
        sha256: file.sha256.clone(),
    };
    // The parts of a shard are read one after another, for its MD5; all else in any order.
    let mut runs: Vec<Run<'_>> = shards
        .iter()
        .map(|shard| Run {
            files: manifest.parts(&shard.data_path).map(expected).collect(),
            md5: Some((&shard.data_path, &shard.md5)),
        })
        .filter(|run: &Run<'_>| !run.files.is_empty())
        .collect();
    let is_shard = |file: &File| shards.iter().any(|s| file.holds() == Some(&s.data_path));
    // A host that reads header rules does not serve them.
    let served = |file: &File| names.is_some() || file.path != HEADERS;
    let others = manifest.files.iter().filter(|file| !is_shard(file) && served(file));
    runs.extend(others.map(|file| Run { files: vec![expected(file)], md5: None }));
    let mut checked = check_all(files, runs)?;
    match cache {
        Ok(None) => checked.problems.push(Problem::Missing { file: TENSOR_CACHE.into() }),
        Ok(Some(cache)) => {
            let about = manifest.about.as_ref().zip(assignment.as_ref());
            checked.problems.extend(agree(&manifest, about, &cache));
        }
        Err(error) => {
            checked.problems.push(Problem::Manifests { reason: error.to_string() });
        }
    }
    if !options.allow_extra {
        let known = |name: &String| name == PACKLIGHT || manifest.file(name).is_some();
        let strays = names.into_iter().flatten().filter(|name| !known(name));
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
    let runs = cache.records.iter().map(|shard| {
        let file = Expected {
            path: shard.data_path.clone(),
            bytes: shard.nbytes,
            // Only the pieces it is read in.
            chunk_bytes: CHUNK_BYTES,
            sha256: Vec::new(),
        };
        Run { files: vec![file], md5: Some((&shard.data_path, &shard.md5)) }
    });
    let checked = check_all(files, runs.collect())?;
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
struct Expected {
    path: String,
    bytes: u64,
    chunk_bytes: u64,
    /// Of each chunk, where the manifest has them.
    sha256: Vec<String>,
}

/// Files that are read one after another.
struct Run<'a> {
    files: Vec<Expected>,
    /// The shard that they make up and its MD5, where that is to be compared.
    md5: Option<(&'a str, &'a str)>,
}

#[derive(Default)]
struct Checked {
    chunks: usize,
    md5_shards: usize,
    problems: Vec<Problem>,
}

fn check_all<F: Files + ?Sized>(files: &F, runs: Vec<Run<'_>>) -> Result<Checked, PackError> {
    let checked = runs.into_par_iter().map(|run| check(files, &run));
    let checked: Vec<Checked> = checked.collect::<Result<_, PackError>>()?;
    Ok(checked.into_iter().fold(Checked::default(), |mut all, one| {
        all.chunks += one.chunks;
        all.md5_shards += one.md5_shards;
        all.problems.extend(one.problems);
        all
    }))
}

/// Reads each file once. The MD5 of what is missing or has the wrong size is not compared.
fn check<F: Files + ?Sized>(files: &F, run: &Run<'_>) -> Result<Checked, PackError> {
    let (mut checked, mut sum) = (Checked::default(), run.md5.map(|_| Md5::new()));
    for expected in &run.files {
        match check_file(files, expected, sum.as_mut(), &mut checked)? {
            None => {}
            Some(problem) => {
                checked.problems.push(problem);
                sum = None;
            }
        }
    }
    if let (Some((file, expected)), Some(sum)) = (run.md5, sum) {
        checked.md5_shards = 1;
        if hex(&sum.finalize()) != expected {
            checked.problems.push(Problem::WrongMd5 { file: file.into() });
        }
    }
    Ok(checked)
}

/// Compares the chunks of a file. What is not there, or of the wrong size, is compared no further and comes back.
fn check_file<F: Files + ?Sized>(
    files: &F,
    Expected { path, bytes, chunk_bytes, sha256: hashes }: &Expected,
    mut md5: Option<&mut Md5>,
    checked: &mut Checked,
) -> Result<Option<Problem>, PackError> {
    let (file, bytes) = (path.clone(), *bytes);
    let unreadable = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => Ok(Some(Problem::Missing { file: file.clone() })),
        std::io::ErrorKind::InvalidData => {
            Ok(Some(Problem::Unreadable { file: file.clone(), reason: error.to_string() }))
        }
        _ => Err(PackError::Io(error)),
    };
    let mut reader = match files.open(path, Some(bytes)) {
        Ok(reader) => reader,
        Err(error) => return unreadable(error),
    };
    let (mut found, mut chunk, mut wrong) = (0, Vec::new(), Vec::new());
    for i in 0.. {
        chunk.clear();
        // A byte beyond the end is looked for, and no more.
        let limit = if found < bytes { (*chunk_bytes).min(bytes - found) } else { 1 };
        if let Err(error) = reader.by_ref().take(limit).read_to_end(&mut chunk) {
            return unreadable(error);
        }
        let (start, end) = (found, found + chunk.len() as u64);
        found = end;
        if let Some(expected) = hashes.get(i) {
            checked.chunks += 1;
            if sha256(&chunk) != *expected {
                wrong.push(Problem::WrongChunk { file: file.clone(), chunk: i, start, end });
            }
        }
        if let Some(md5) = &mut md5 {
            md5.update(&chunk);
        }
        if chunk.is_empty() || found > bytes {
            break;
        }
    }
    if found != bytes {
        let found = files.size(path)?.unwrap_or(found);
        return Ok(Some(Problem::WrongSize { file, found, expected: bytes }));
    }
    checked.problems.extend(wrong);
    Ok(None)
}

/// A file of the bundle, or nothing where a part is missing. Whether it is what it should be is told of each part.
fn join<F: Files + ?Sized>(
    files: &F,
    manifest: &Packlight,
    name: &str,
) -> Result<Option<Vec<u8>>, PackError> {
    let mut bytes = Vec::new();
    for file in manifest.parts(name) {
        match read(files, &file.path)? {
            Some(part) => bytes.extend(part),
            None => return Ok(None),
        }
    }
    Ok(manifest.size(name).map(|_| bytes))
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
fn agree(
    manifest: &Packlight,
    about: Option<(&About, &Assignment)>,
    cache: &TensorCache,
) -> Vec<Problem> {
    let mut reasons = Vec::new();
    for shard in &cache.records {
        let (path, nbytes) = (&shard.data_path, shard.nbytes);
        match manifest.size(path) {
            Some(bytes) if bytes == nbytes => {}
            Some(bytes) => {
                reasons.push(format!(
                    "{TENSOR_CACHE} gives `{path}` {nbytes} bytes, {PACKLIGHT} {bytes}"
                ));
            }
            None => reasons.push(format!("{TENSOR_CACHE} names `{path}`, {PACKLIGHT} does not")),
        }
    }
    if let Some((about, assignment)) = about {
        let records = cache.records.iter().flat_map(|shard| &shard.records);
        let mut held: BTreeMap<String, _> =
            records.map(|record| (record.name.clone(), record.spec())).collect();
        for weight in about.model.weights() {
            for record in assignment.storage(weight).records() {
                if held.remove(&record.name).as_ref() != Some(record) {
                    let name = &record.name;
                    reasons.push(format!(
                        "{TENSOR_CACHE} does not hold `{name}` as the model needs it"
                    ));
                }
            }
        }
        let unused = |name| format!("{TENSOR_CACHE} holds `{name}`, which the model does not use");
        reasons.extend(held.keys().map(unused));
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
