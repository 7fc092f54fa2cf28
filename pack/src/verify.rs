//! Is a bundle what its manifests say? Sizes, hashes, and the manifests against each other.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::Path;

use fs_err::File;
use md5::{Digest as _, Md5};
use packlight_formats::digest::{hex, sha256};
use packlight_formats::manifest;
use packlight_formats::manifest::packlight::{About, PACKLIGHT, Packlight};
use packlight_formats::manifest::tensor_cache::{Shard, TENSOR_CACHE, TensorCache};
use packlight_formats::quant::Assignment;
use rayon::prelude::*;

use crate::error::PackError;
use crate::folder::names;
use crate::source::read_range;

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
    let tensor_cache = folder.join(TENSOR_CACHE);
    let ours = folder.join(PACKLIGHT);
    if !ours.is_file() && !tensor_cache.is_file() {
        return Err(PackError::NotABundle(folder.into()));
    }
    if ours.is_file() { verify_packlight(folder, options) } else { verify_mlc(folder) }
}

fn verify_packlight(folder: &Path, options: VerifyOptions) -> Result<Verification, PackError> {
    let json = fs_err::read(folder.join(PACKLIGHT))?;
    let parsed = Packlight::parse(&json).and_then(|manifest| {
        let assignment = manifest.about.as_ref().map(About::assignment).transpose()?;
        Ok((assignment, manifest))
    });
    let (assignment, manifest) = match parsed {
        Ok(parsed) => parsed,
        // Nothing else can be checked against a manifest that contradicts itself.
        Err(error) => return Ok(Verification::failed(&json, error.to_string())),
    };
    let mut problems =
        sizes(folder, manifest.files.iter().map(|file| (file.path.as_str(), file.bytes)))?;
    let broken: BTreeSet<String> =
        problems.iter().map(|problem| problem.file().to_owned()).collect();
    let sound: Vec<&manifest::File> =
        manifest.files.iter().filter(|file| !broken.contains(&file.path)).collect();

    let chunks = sound.iter().flat_map(|file| {
        file.chunks(manifest.chunk_bytes).enumerate().map(move |chunk| (file, chunk))
    });
    let chunks: Vec<_> = chunks.collect();
    let wrong = chunks.par_iter().map(|(file, (i, (range, expected)))| {
        let found = sha256(&read_range(folder, &file.path, range.clone())?);
        let (file, chunk, start, end) = (file.path.clone(), *i, range.start, range.end);
        Ok((found != *expected).then_some(Problem::WrongChunk { file, chunk, start, end }))
    });
    let wrong: Vec<Option<Problem>> = wrong.collect::<Result<_, PackError>>()?;
    problems.extend(wrong.into_iter().flatten());

    let mut md5_shards = 0;
    let cache = joined(folder, &manifest, TENSOR_CACHE);
    match cache.map(|json| TensorCache::parse(&json)) {
        Some(Ok(cache)) => {
            let about = manifest.about.as_ref().zip(assignment.as_ref());
            problems.extend(agree(&manifest, about, &cache));
            if options.md5 {
                let files = |shard: &Shard| -> Vec<String> {
                    manifest.parts(&shard.data_path).map(|file| file.path.clone()).collect()
                };
                let there = |(_, files): &(&Shard, Vec<String>)| {
                    files.iter().all(|file| folder.join(file).is_file())
                };
                let shards = cache.records.iter().map(|shard| (shard, files(shard)));
                let shards: Vec<_> = shards.filter(there).collect();
                md5_shards = shards.len();
                problems.extend(wrong_md5(folder, &shards)?);
            }
        }
        Some(Err(error)) => problems.push(Problem::Manifests { reason: error.to_string() }),
        None => problems.push(Problem::Missing { file: TENSOR_CACHE.into() }),
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
fn verify_mlc(folder: &Path) -> Result<Verification, PackError> {
    let cache = TensorCache::parse(&fs_err::read(folder.join(TENSOR_CACHE))?)?;
    let mut problems =
        sizes(folder, cache.records.iter().map(|shard| (shard.data_path.as_str(), shard.nbytes)))?;
    let sound: Vec<(&Shard, Vec<String>)> = cache
        .records
        .iter()
        .filter(|shard| !problems.iter().any(|problem| problem.file() == shard.data_path))
        .map(|shard| (shard, vec![shard.data_path.clone()]))
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

/// A file of the bundle whose parts are all there. Whether they are what they should be is told of each part.
fn joined(folder: &Path, manifest: &Packlight, name: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for file in manifest.parts(name) {
        bytes.extend(fs_err::read(folder.join(&file.path)).ok()?);
    }
    manifest.size(name).is_some().then_some(bytes)
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

/// Shards, each with its files in order.
fn wrong_md5(folder: &Path, shards: &[(&Shard, Vec<String>)]) -> Result<Vec<Problem>, PackError> {
    let checked = shards.par_iter().map(|(shard, files)| {
        let (mut md5, mut buffer) = (Md5::new(), vec![0; 1 << 20]);
        for file in files {
            let mut file = File::open(folder.join(file))?;
            loop {
                match file.read(&mut buffer)? {
                    0 => break,
                    n => md5.update(&buffer[..n]),
                }
            }
        }
        let file = shard.data_path.clone();
        Ok((hex(&md5.finalize()) != shard.md5).then_some(Problem::WrongMd5 { file }))
    });
    let checked: Vec<Option<Problem>> = checked.collect::<Result<_, PackError>>()?;
    Ok(checked.into_iter().flatten().collect())
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
