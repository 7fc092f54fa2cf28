//! What is in the cache, and how it gets smaller.

use std::collections::BTreeSet;
use std::fs::{FileType, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use packlight_formats::manifest::Packlight;

use super::{BundleEntry, Cache};
use crate::checkpoint::{Listing, PARTIAL};
use crate::error::HttpError;

/// A temporary file that is older was left by a process that is gone.
const STALE: Duration = Duration::from_hours(1);

/// Something that was downloaded.
#[derive(Clone, Debug)]
pub struct Cached {
    /// What it is.
    pub kind: Kind,
    /// Where it came from.
    pub name: String,
    /// Bytes on disk; downloads may share some.
    pub bytes: u64,
    /// When it was last opened.
    pub used: SystemTime,
    /// The file that says so. A commit that none names is still listed.
    entry: Option<PathBuf>,
    /// Hashes of a bundle's chunks.
    chunks: BTreeSet<String>,
    /// The folder of a checkpoint.
    folder: Option<PathBuf>,
}

/// Kinds of downloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// What `convert hf://` reads.
    Checkpoint,
    /// What `run URL` reads.
    Bundle,
}

impl Cache {
    /// What is in it, the latest used first.
    pub fn list(&self) -> Result<Vec<Cached>, HttpError> {
        let mut list = Vec::new();
        for entry in files(&self.root.join("bundles"))? {
            list.extend(self.listed_bundle(&entry));
        }
        for entry in files(&self.checkpoints())? {
            list.extend(self.listed_checkpoint(&entry));
        }
        let named: BTreeSet<PathBuf> = list.iter().filter_map(|item| item.folder.clone()).collect();
        for repository in folders(&self.checkpoints())? {
            let commits = folders(&repository)?.into_iter();
            list.extend(commits.filter(|commit| !named.contains(commit)).filter_map(unnamed));
        }
        list.sort_by(|a, b| b.used.cmp(&a.used).then_with(|| a.name.cmp(&b.name)));
        Ok(list)
    }

    /// Removes what was not used for longest, until at most `limit` bytes remain. Returns what went.
    pub fn limit(&self, limit: u64) -> Result<Vec<Cached>, HttpError> {
        let (mut chunks, mut folders, mut total) = (BTreeSet::new(), BTreeSet::new(), 0);
        let mut gone = Vec::new();
        for cached in self.list()? {
            // Another process is filling it.
            if cached.folder.as_deref().is_some_and(is_growing) {
                continue;
            }
            let new: u64 = match &cached.folder {
                Some(folder) if folders.contains(folder) => 0,
                Some(_) => cached.bytes,
                None => cached.chunks.difference(&chunks).map(|hash| self.chunk_bytes(hash)).sum(),
            };
            // What has no bytes is removed by a limit of 0, too.
            if limit > 0 && total + new <= limit {
                total += new;
                chunks.extend(cached.chunks);
                folders.extend(cached.folder);
                continue;
            }
            // First what says that the rest is whole.
            if let Some(entry) = &cached.entry {
                remove(fs_err::remove_file(entry))
                    .map_err(|error| HttpError::cache(entry, error))?;
            }
            if let Some(folder) = &cached.folder {
                remove(fs_err::remove_dir_all(folder))
                    .map_err(|error| HttpError::cache(folder, error))?;
                // The repository's folder goes with its last commit.
                if let Some(repository) = folder.parent() {
                    fs_err::remove_dir(repository).ok();
                }
            }
            gone.push(cached);
        }
        self.sweep(&chunks)?;
        Ok(gone)
    }

    /// Removes chunks that no bundle names any more.
    fn sweep(&self, kept: &BTreeSet<String>) -> Result<(), HttpError> {
        let chunks = self.root.join("chunks");
        for folder in folders(&chunks)? {
            for path in files(&folder)? {
                let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                let temporary = name.len() != 64;
                let unused = if temporary { is_stale(&path) } else { !kept.contains(name) };
                if unused {
                    remove(fs_err::remove_file(&path))
                        .map_err(|error| HttpError::cache(&path, error))?;
                }
            }
        }
        Ok(())
    }

    fn listed_bundle(&self, path: &Path) -> Option<Cached> {
        let entry: BundleEntry = serde_json::from_slice(&fs_err::read(path).ok()?).ok()?;
        let manifest = self.verified(&entry.sha256).and_then(|json| Packlight::parse(&json).ok());
        let files = manifest.into_iter().flat_map(|manifest| manifest.files);
        let mut chunks: BTreeSet<String> = files.flat_map(|file| file.sha256).collect();
        chunks.insert(entry.sha256);
        Some(Cached {
            kind: Kind::Bundle,
            name: entry.url,
            bytes: chunks.iter().map(|hash| self.chunk_bytes(hash)).sum(),
            used: used(path),
            entry: Some(path.into()),
            chunks,
            folder: None,
        })
    }

    fn listed_checkpoint(&self, path: &Path) -> Option<Cached> {
        let listing: Listing = serde_json::from_slice(&fs_err::read(path).ok()?).ok()?;
        let folder = listing.folder(self);
        Some(Cached {
            used: used(path),
            entry: Some(path.into()),
            ..checkpoint(listing.address, folder)
        })
    }

    fn chunk_bytes(&self, hash: &str) -> u64 {
        bytes(&self.chunk(hash))
    }
}

/// A commit without an entry: its download was interrupted, and can go on, or its branch has moved.
fn unnamed(folder: PathBuf) -> Option<Cached> {
    Some(checkpoint(Listing::address_of(&folder)?, folder))
}

fn checkpoint(name: String, folder: PathBuf) -> Cached {
    let files = files(&folder).unwrap_or_default();
    Cached {
        kind: Kind::Checkpoint,
        name,
        bytes: files.iter().map(|path| bytes(path)).sum(),
        used: files.iter().map(|path| used(path)).max().unwrap_or_else(|| used(&folder)),
        entry: None,
        chunks: BTreeSet::new(),
        folder: Some(folder),
    }
}

/// Whether a process is downloading into a checkpoint's folder.
fn is_growing(folder: &Path) -> bool {
    let files = files(folder).unwrap_or_default();
    let mut partial = files.iter().filter(|path| path.extension().is_some_and(|e| e == PARTIAL));
    partial.any(|path| {
        let tried = fs_err::File::open(path).map(|file| file.file().try_lock());
        matches!(tried, Ok(Err(TryLockError::WouldBlock)))
    })
}

fn files(folder: &Path) -> Result<Vec<PathBuf>, HttpError> {
    entries(folder, FileType::is_file)
}

fn folders(folder: &Path) -> Result<Vec<PathBuf>, HttpError> {
    entries(folder, FileType::is_dir)
}

/// What a folder holds; nothing, where there is none.
fn entries(folder: &Path, wanted: fn(&FileType) -> bool) -> Result<Vec<PathBuf>, HttpError> {
    let read = || -> io::Result<Vec<PathBuf>> {
        let mut paths = Vec::new();
        for entry in fs_err::read_dir(folder)? {
            let entry = entry?;
            if wanted(&entry.file_type()?) {
                paths.push(entry.path());
            }
        }
        paths.sort();
        Ok(paths)
    };
    match read() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        paths => paths.map_err(|error| HttpError::cache(folder, error)),
    }
}

/// Another process may have been first.
fn remove(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn bytes(path: &Path) -> u64 {
    fs_err::metadata(path).map_or(0, |metadata| metadata.len())
}

fn used(path: &Path) -> SystemTime {
    let modified = fs_err::metadata(path).and_then(|metadata| metadata.modified());
    modified.unwrap_or(SystemTime::UNIX_EPOCH)
}

fn is_stale(path: &Path) -> bool {
    used(path).elapsed().is_ok_and(|age| age > STALE)
}
