//! A bundle in a folder, read for packing it again: whatever wrote it, and however it was cut.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use fs_err::File;
use packlight_formats::digest::sha256;
use packlight_formats::manifest::packlight::PACKLIGHT;
use packlight_formats::manifest::tensor_cache::{
    NDARRAY_CACHE, NDARRAY_CACHE_B16, TENSOR_CACHE, TENSOR_CACHE_B16,
};
use packlight_formats::manifest::{HEADERS, Names, Packlight, TensorCache, split_id};

use crate::claim::Claim;
use crate::compact::indent;
use crate::contents::Contents;
use crate::error::PackError;
use crate::folder::names;
use crate::sidecar::Sidecar;
use crate::writer::Written;

/// Bytes read at once where no chunk says how many.
const READ_BYTES: u64 = 8 << 20;
/// Bytes handed on at once.
const PIECE_BYTES: usize = 1 << 20;
/// All files beside the shards together: the largest tokenizers have a third of it.
const SIDECAR_BYTES: u64 = 128 << 20;
/// What is made anew for every bundle.
const MADE: [&str; 6] =
    [TENSOR_CACHE, NDARRAY_CACHE, TENSOR_CACHE_B16, NDARRAY_CACHE_B16, HEADERS, PACKLIGHT];

/// A bundle that can be packed again.
#[derive(Debug)]
pub struct Source {
    folder: PathBuf,
    /// Ours. A bundle of MLC-LLM's has none.
    manifest: Option<Packlight>,
    /// As it is named there.
    tensors: TensorCache,
    sha256: String,
}

impl Source {
    /// Reads the manifests of a bundle and compares the sizes that they give.
    pub fn open(folder: &Path) -> Result<Self, PackError> {
        let Some(json) = read(&folder.join(PACKLIGHT))? else { return Self::open_mlc(folder) };
        let manifest = Packlight::parse(&json)?;
        let cache = read_file(folder, &manifest, TENSOR_CACHE)?;
        let tensors = TensorCache::parse(&cache)?;
        for shard in &tensors.records {
            let (name, bytes) = (&shard.data_path, shard.nbytes);
            if manifest.size(name) != Some(bytes) {
                let reason = format!("`{name}` is not in {PACKLIGHT} with {bytes} bytes");
                return Err(PackError::Disagree(reason));
            }
        }
        Ok(Self { folder: folder.into(), manifest: Some(manifest), tensors, sha256: sha256(&json) })
    }

    /// Before web-llm 0.2.80 the manifest had its old name only.
    fn open_mlc(folder: &Path) -> Result<Self, PackError> {
        let json = match read(&folder.join(TENSOR_CACHE))? {
            Some(json) => json,
            None => read(&folder.join(NDARRAY_CACHE))?
                .ok_or_else(|| PackError::NotABundle(folder.display().to_string()))?,
        };
        let tensors = TensorCache::parse(&json)?;
        for shard in &tensors.records {
            let path = folder.join(&shard.data_path);
            let file = || shard.data_path.clone();
            let found = match fs_err::metadata(path) {
                Ok(metadata) => metadata.len(),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    return Err(PackError::Missing { file: file() });
                }
                Err(error) => return Err(error.into()),
            };
            if found != shard.nbytes {
                return Err(PackError::WrongSize { file: file(), found, expected: shard.nbytes });
            }
        }
        Ok(Self { folder: folder.into(), manifest: None, tensors, sha256: sha256(&json) })
    }

    /// SHA-256 of the manifest that names every other byte.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// Bytes of all shards.
    pub fn shard_bytes(&self) -> u64 {
        self.tensors.records.iter().map(|shard| shard.nbytes).sum()
    }

    /// What the bundle holds, as it was before it was cut. Small files are checked against their hashes.
    pub fn contents(&self) -> Result<Contents, PackError> {
        let mut tensors = self.tensors.clone();
        let hashed = self.manifest.as_ref().is_some_and(|m| m.names == Names::Hashed);
        for shard in &mut tensors.records {
            if let Some((plain, _)) = split_id(&shard.data_path).filter(|_| hashed) {
                shard.data_path = plain;
            }
        }
        let about = self.manifest.as_ref().and_then(|manifest| manifest.about.clone());
        Ok(Contents { about, tensors, sidecars: self.sidecars()? })
    }

    fn sidecars(&self) -> Result<Vec<Sidecar>, PackError> {
        let is_shard =
            |name: &str| self.tensors.records.iter().any(|shard| shard.data_path == name);
        let is_sidecar = |name: &&str| !MADE.contains(name) && !is_shard(name);
        let Some(manifest) = &self.manifest else {
            let mut names = names(&self.folder)?;
            // What tools keep for themselves is no part of a bundle.
            names.retain(|name| {
                is_sidecar(&name.as_str())
                    && !name.starts_with('.')
                    && self.folder.join(name).is_file()
            });
            let size = |name: &String| Ok(fs_err::metadata(self.folder.join(name))?.len());
            let sizes = names.iter().map(size).collect::<Result<Vec<u64>, PackError>>()?;
            check_sizes(names.iter().map(String::as_str).zip(sizes))?;
            let read = |path: String| {
                let bytes = fs_err::read(self.folder.join(&path))?;
                Ok(Sidecar { path, bytes })
            };
            return names.into_iter().map(read).collect();
        };
        let mut names: Vec<&str> = manifest.files.iter().filter_map(|file| file.holds()).collect();
        names.dedup();
        names.retain(is_sidecar);
        check_sizes(names.iter().map(|&name| (name, manifest.size(name).unwrap_or(0))))?;
        let sidecars = names.into_iter().map(|name| {
            let bytes = read_file(&self.folder, manifest, name)?;
            let was_compacted = manifest.compacted.iter().any(|file| file == name);
            let bytes = if was_compacted { indent(&bytes) } else { bytes };
            Ok(Sidecar { path: name.into(), bytes })
        });
        sidecars.collect()
    }

    /// Copies the shards into a claimed folder, checking every byte on the way, and finishes the bundle there.
    pub fn copy(&self, claim: Claim, progress: impl Fn(u64)) -> Result<Written, PackError> {
        let missing: Vec<usize> =
            (0..self.tensors.records.len()).filter(|&shard| !claim.has(shard)).collect();
        claim.write(|push| {
            for shard in missing {
                let mut at = 0;
                self.read_shard(shard, &mut |bytes| {
                    // A good many wait to be written, so each should be small.
                    for piece in bytes.chunks(PIECE_BYTES) {
                        push(shard, at, piece.to_vec())?;
                        at += piece.len() as u64;
                    }
                    progress(bytes.len() as u64);
                    Ok(())
                })?;
            }
            Ok(())
        })
    }

    fn read_shard(
        &self,
        shard: usize,
        each: &mut dyn FnMut(Vec<u8>) -> Result<(), PackError>,
    ) -> Result<(), PackError> {
        let shard = &self.tensors.records[shard];
        let Some(manifest) = &self.manifest else {
            // Its MD5 is compared when it has been copied.
            let mut start = 0;
            loop {
                let range = start..shard.nbytes.min(start + READ_BYTES);
                start = range.end;
                each(read_range(&self.folder, &shard.data_path, range)?)?;
                if start == shard.nbytes {
                    return Ok(());
                }
            }
        };
        for file in manifest.parts(&shard.data_path) {
            for (chunk, (range, expected)) in file.chunks(manifest.chunk_bytes).enumerate() {
                each(read_chunk(&self.folder, &file.path, chunk, range, expected)?)?;
            }
        }
        Ok(())
    }
}

/// Files beside the shards are held while the bundle is cut, so they must not be just anything.
fn check_sizes<'a>(files: impl Iterator<Item = (&'a str, u64)> + Clone) -> Result<(), PackError> {
    let bytes = files.clone().fold(0, |sum: u64, (_, bytes)| sum.saturating_add(bytes));
    match files.max_by_key(|&(_, bytes)| bytes) {
        Some((largest, _)) if bytes > SIDECAR_BYTES => {
            Err(PackError::TooMuchBeside { bytes, largest: largest.into(), most: SIDECAR_BYTES })
        }
        _ => Ok(()),
    }
}

/// A file of a bundle, joined and checked.
fn read_file(folder: &Path, manifest: &Packlight, name: &str) -> Result<Vec<u8>, PackError> {
    let mut bytes = Vec::new();
    let mut parts = manifest.parts(name).peekable();
    if parts.peek().is_none() {
        return Err(PackError::Missing { file: name.into() });
    }
    for file in parts {
        for (chunk, (range, expected)) in file.chunks(manifest.chunk_bytes).enumerate() {
            bytes.extend(read_chunk(folder, &file.path, chunk, range, expected)?);
        }
    }
    Ok(bytes)
}

fn read_chunk(
    folder: &Path,
    path: &str,
    chunk: usize,
    range: Range<u64>,
    expected: &str,
) -> Result<Vec<u8>, PackError> {
    let bytes = read_range(folder, path, range)?;
    if sha256(&bytes) != expected {
        return Err(PackError::WrongChunk { file: path.into(), chunk });
    }
    Ok(bytes)
}

/// Bytes of a file in a folder; fewer where it ends before them.
pub(crate) fn read_range(
    folder: &Path,
    path: &str,
    range: Range<u64>,
) -> Result<Vec<u8>, PackError> {
    let mut file = match File::open(folder.join(path)) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(PackError::Missing { file: path.into() });
        }
        Err(error) => return Err(error.into()),
    };
    file.seek(SeekFrom::Start(range.start))?;
    let mut bytes = Vec::new();
    file.take(range.end - range.start).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A whole file, `None` where there is none.
fn read(path: &Path) -> Result<Option<Vec<u8>>, PackError> {
    match fs_err::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}
