//! Is a bundle what its manifests say? Sizes, hashes, and the manifests against each other.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use fs_err::File;
use md5::{Digest as _, Md5};
use packlight_formats::digest::{hex, sha256};
use packlight_formats::manifest::packlight::{self, PACKLIGHT, Packlight};
use packlight_formats::manifest::tensor_cache::{NDARRAY_CACHE, Shard, TENSOR_CACHE, TensorCache};
use packlight_formats::quant::Assignment;
use rayon::prelude::*;

use crate::error::PackError;
use crate::folder::names;

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

/// Checks a bundle folder: ours by its chunk hashes, a plain MLC bundle by its MD5 sums.
pub fn verify(folder: &Path, options: VerifyOptions) -> Result<Verification, PackError> {
    if folder.join(PACKLIGHT).is_file() {
        return verify_packlight(folder, options);
    }
    // Until TVM 0.22 MLC-LLM wrote it under its old name only.
    let caches = [TENSOR_CACHE, NDARRAY_CACHE].map(|name| folder.join(name));
    match caches.iter().find(|cache| cache.is_file()) {
        Some(cache) => verify_mlc(folder, cache),
        None => Err(PackError::NotABundle(folder.into())),
    }
}

fn verify_packlight(folder: &Path, options: VerifyOptions) -> Result<Verification, PackError> {
    let json = fs_err::read(folder.join(PACKLIGHT))?;
    let parsed =
        Packlight::parse(&json).and_then(|manifest| Ok((manifest.assignment()?, manifest)));
    let (assignment, manifest) = match parsed {
        Ok(parsed) => parsed,
        // Nothing else can be checked against a manifest that contradicts itself.
        Err(error) => return Ok(Verification::failed(&json, error.to_string())),
    };
    let mut problems =
        sizes(folder, manifest.files.iter().map(|file| (file.path.as_str(), file.bytes)))?;
    let broken: BTreeSet<String> =
        problems.iter().map(|problem| problem.file().to_owned()).collect();
    let sound: Vec<&packlight::File> =
        manifest.files.iter().filter(|file| !broken.contains(&file.path)).collect();

    let chunks = sound.iter().flat_map(|file| {
        file.chunks(manifest.chunk_bytes).enumerate().map(move |chunk| (file, chunk))
    });
    let chunks: Vec<_> = chunks.collect();
    let wrong = chunks.par_iter().map(|(file, (i, (range, expected)))| {
        let found = sha256(&read_range(&folder.join(&file.path), range)?);
        let (file, chunk, start, end) = (file.path.clone(), *i, range.start, range.end);
        Ok((found != *expected).then_some(Problem::WrongChunk { file, chunk, start, end }))
    });
    let wrong: Vec<Option<Problem>> = wrong.collect::<Result<_, PackError>>()?;
    problems.extend(wrong.into_iter().flatten());

    let mut md5_shards = 0;
    match fs_err::read(folder.join(TENSOR_CACHE))
        .map_err(PackError::from)
        .and_then(|json| Ok(TensorCache::parse(&json)?))
    {
        Ok(cache) => {
            problems.extend(agree(folder, &manifest, &assignment, &cache));
            if options.md5 {
                let shards: Vec<&Shard> = cache
                    .records
                    .iter()
                    .filter(|shard| folder.join(&shard.data_path).is_file())
                    .collect();
                md5_shards = shards.len();
                problems.extend(wrong_md5(folder, &shards)?);
            }
        }
        Err(PackError::Manifest(error)) => {
            problems.push(Problem::Manifests { reason: error.to_string() });
        }
        Err(_) => problems.push(Problem::Missing { file: TENSOR_CACHE.into() }),
    }
    if !options.allow_extra {
        let known = |name: &String| name == PACKLIGHT || manifest.file(name).is_some();
        problems.extend(
            names(folder)?
                .into_iter()
                .filter(|name| !known(name))
                .map(|file| Problem::Stray { file }),
        );
    }
    problems.sort();
    problems.dedup();
    Ok(Verification {
        files: manifest.files.len() + 1,
        bytes: manifest.files.iter().map(|file| file.bytes).sum::<u64>() + json.len() as u64,
        chunks: chunks.len(),
        md5_shards,
        sha256: Some(sha256(&json)),
        problems,
    })
}

/// A plain MLC bundle has one hash per shard and says nothing of its other files.
fn verify_mlc(folder: &Path, cache: &Path) -> Result<Verification, PackError> {
    let json = fs_err::read(cache)?;
    let cache = match TensorCache::parse(&json) {
        Ok(cache) => cache,
        Err(error) => {
            return Ok(Verification {
                sha256: None,
                ..Verification::failed(&json, error.to_string())
            });
        }
    };
    let mut problems =
        sizes(folder, cache.records.iter().map(|shard| (shard.data_path.as_str(), shard.nbytes)))?;
    let sound: Vec<&Shard> = cache
        .records
        .iter()
        .filter(|shard| !problems.iter().any(|problem| problem.file() == shard.data_path))
        .collect();
    let md5_shards = sound.len();
    problems.extend(wrong_md5(folder, &sound)?);
    let bytes = cache.records.iter().map(|shard| shard.nbytes).sum();
    Ok(Verification {
        files: cache.records.len(),
        bytes,
        chunks: 0,
        md5_shards,
        sha256: None,
        problems,
    })
}

fn sizes<'a>(
    folder: &Path,
    files: impl Iterator<Item = (&'a str, u64)>,
) -> Result<Vec<Problem>, PackError> {
    let mut problems = Vec::new();
    for (path, expected) in files {
        let file = path.to_owned();
        match fs_err::metadata(folder.join(path)) {
            Ok(metadata) if metadata.len() == expected => {}
            Ok(metadata) => {
                problems.push(Problem::WrongSize { file, found: metadata.len(), expected });
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                problems.push(Problem::Missing { file });
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(problems)
}

/// The two manifests name the same shards, and the shards hold what the model needs.
fn agree(
    folder: &Path,
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
    let bytes = |name: &str| fs_err::read(folder.join(name)).ok();
    if manifest.file(NDARRAY_CACHE).is_some() && bytes(NDARRAY_CACHE) != bytes(TENSOR_CACHE) {
        reasons.push(format!("{NDARRAY_CACHE} differs from {TENSOR_CACHE}"));
    }
    reasons.into_iter().map(|reason| Problem::Manifests { reason }).collect()
}

fn wrong_md5(folder: &Path, shards: &[&Shard]) -> Result<Vec<Problem>, PackError> {
    let checked = shards.par_iter().map(|shard| {
        let mut file = File::open(folder.join(&shard.data_path))?;
        let (mut md5, mut buffer) = (Md5::new(), vec![0; 1 << 20]);
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                n => md5.update(&buffer[..n]),
            }
        }
        let file = shard.data_path.clone();
        Ok((hex(&md5.finalize()) != shard.md5).then_some(Problem::WrongMd5 { file }))
    });
    let checked: Vec<Option<Problem>> = checked.collect::<Result<_, PackError>>()?;
    Ok(checked.into_iter().flatten().collect())
}

fn read_range(path: &Path, range: &std::ops::Range<u64>) -> Result<Vec<u8>, PackError> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(range.start))?;
    let mut bytes = Vec::new();
    file.take(range.end - range.start).read_to_end(&mut bytes)?;
    Ok(bytes)
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

impl Problem {
    /// The file it is about; empty where it is about several.
    fn file(&self) -> &str {
        match self {
            Self::Missing { file }
            | Self::WrongSize { file, .. }
            | Self::WrongChunk { file, .. }
            | Self::WrongMd5 { file }
            | Self::Stray { file } => file,
            Self::Manifests { .. } => "",
        }
    }
}
