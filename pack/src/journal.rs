//! What a folder is being filled with: a few lines beside the files, locked by who fills it, gone when it is full.
//!
//! Whoever finds the journal of a process that is no more can go on where it stopped. A file is announced before it gets
//! its name, so no name is ever there that the journal does not know.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::error::PackError;

/// Its name.
pub(crate) const JOURNAL: &str = ".packlight-journal";

/// What the bytes of a bundle's shards depend on, by name.
pub(crate) type Recipe = BTreeMap<String, String>;

/// A line of it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    /// The first: what is being written.
    Recipe(Recipe),
    /// Files of an earlier bundle, which must go.
    Stale(Vec<String>),
    /// A file that is about to get its name.
    File(Entry),
    /// The MD5 of a whole shard, which is not known from its parts.
    Md5(usize, String),
}

/// A file that was written.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) path: String,
    /// Which part of which shard it is, where it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) part: Option<(usize, usize)>,
    /// Of its chunks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) sha256: Vec<String>,
}

/// What a journal says when it is opened.
#[derive(Debug, Default)]
pub(crate) struct Past {
    /// None where the journal is new, or was stopped before its first line.
    pub(crate) recipe: Option<Recipe>,
    pub(crate) stale: Vec<String>,
    pub(crate) files: Vec<Entry>,
    /// By shard.
    pub(crate) md5: BTreeMap<usize, String>,
}

/// An open journal, locked for as long as it is.
#[derive(Debug)]
pub(crate) struct Journal {
    file: Mutex<File>,
    path: PathBuf,
}

impl Journal {
    /// Opens the journal of a folder, or begins one, and locks it.
    pub(crate) fn open(folder: &Path) -> Result<(Self, Past), PackError> {
        let path = folder.join(JOURNAL);
        loop {
            let file = File::options().read(true).append(true).create(true).open(&path)?;
            match file.try_lock() {
                // Some network file systems have no locks; there nobody can be kept out.
                Ok(()) => {}
                Err(TryLockError::Error(error))
                    if error.kind() == std::io::ErrorKind::Unsupported => {}
                Err(TryLockError::Error(error)) => return Err(error.into()),
                Err(TryLockError::WouldBlock) => return Err(PackError::Locked(folder.into())),
            }
            // Its last owner may have finished and removed it between these two lines.
            if is_at(&file, &path) {
                let past = Past::read(&file)?;
                return Ok((Self { file: Mutex::new(file), path }, past));
            }
        }
    }

    /// Forgets what it said, and begins anew.
    pub(crate) fn restart(&self, recipe: &Recipe, stale: Vec<String>) -> Result<(), PackError> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).set_len(0)?;
        self.append(&Line::Recipe(recipe.clone()))?;
        self.append(&Line::Stale(stale))
    }

    /// Announces a file.
    pub(crate) fn announce(&self, entry: Entry) -> Result<(), PackError> {
        self.append(&Line::File(entry))
    }

    /// Notes the MD5 of a shard.
    pub(crate) fn md5(&self, shard: usize, md5: String) -> Result<(), PackError> {
        self.append(&Line::Md5(shard, md5))
    }

    fn append(&self, line: &Line) -> Result<(), PackError> {
        let mut text = serde_json::to_vec(line).map_err(std::io::Error::other)?;
        text.push(b'\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = |source| PackError::Write { path: JOURNAL.into(), source };
        file.write_all(&text).map_err(failed)
    }

    /// The folder is full.
    pub(crate) fn remove(self) -> Result<(), PackError> {
        Ok(fs_err::remove_file(&self.path)?)
    }
}

/// Whether a path still leads to this file.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(here), Ok(there)) => identity(here) == identity(there),
        _ => false,
    }
}

/// An open file cannot be removed.
#[cfg(not(unix))]
fn is_at(_: &File, path: &Path) -> bool {
    path.exists()
}

impl Past {
    /// Reads what can be read: a line that was cut off, or that a broken disk has garbled, is as good as not written.
    fn read(file: &File) -> Result<Self, PackError> {
        let mut past = Self::default();
        for line in BufReader::new(file).split(b'\n') {
            match serde_json::from_slice(&line?) {
                Ok(Line::Recipe(recipe)) => past.recipe = Some(recipe),
                Ok(Line::Stale(paths)) => past.stale.extend(paths),
                Ok(Line::File(entry)) => past.files.push(entry),
                Ok(Line::Md5(shard, md5)) => {
                    past.md5.insert(shard, md5);
                }
                Err(_) => {}
            }
        }
        Ok(past)
    }
}
