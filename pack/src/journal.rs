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
    /// Files of an earlier bundle, which must go.
    Stale(Vec<String>),
    /// What is being written from here on. All that came before is stale.
    Recipe(Recipe),
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
            let opened = File::options().read(true).append(true).create(true).open(&path);
            let file =
                opened.map_err(|source| PackError::Create { folder: folder.into(), source })?;
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
                let (past, torn) = Past::read(&file)?;
                if torn {
                    // What comes next is a line of its own.
                    (&file).write_all(b"\n")?;
                }
                return Ok((Self { file: Mutex::new(file), path }, past));
            }
        }
    }

    /// Begins anew: what came before is stale, and so is what else is named.
    pub(crate) fn restart(&self, recipe: &Recipe, stale: Vec<String>) -> Result<(), PackError> {
        self.append(&Line::Stale(stale))?;
        self.append(&Line::Recipe(recipe.clone()))
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

    /// Nothing was begun.
    pub(crate) fn remove_if_empty(self) -> Result<(), PackError> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner).metadata()?;
        if file.len() == 0 { self.remove() } else { Ok(()) }
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
    /// Reads what can be read, and says whether the last line was cut off: such a line, or one that a broken disk has
    /// garbled, is as good as not written.
    fn read(file: &File) -> Result<(Self, bool), PackError> {
        let (mut past, mut reader, mut line) = (Self::default(), BufReader::new(file), Vec::new());
        loop {
            line.clear();
            if reader.read_until(b'\n', &mut line)? == 0 {
                return Ok((past, false));
            }
            match serde_json::from_slice(&line) {
                Ok(Line::Stale(paths)) => past.stale.extend(paths),
                Ok(Line::Recipe(recipe)) => {
                    let Self { mut stale, files, .. } = past;
                    stale.extend(files.into_iter().map(|entry| entry.path));
                    past = Self { recipe: Some(recipe), stale, ..Self::default() };
                }
                Ok(Line::File(entry)) => past.files.push(entry),
                Ok(Line::Md5(shard, md5)) => {
                    past.md5.insert(shard, md5);
                }
                Err(_) => {}
            }
            if !line.ends_with(b"\n") {
                return Ok((past, true));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str) -> Entry {
        Entry { path: path.into(), part: Some((0, 0)), sha256: Vec::new() }
    }

    fn recipe(codes: &str) -> Recipe {
        Recipe::from([("codes".to_owned(), codes.to_owned())])
    }

    fn paths(past: &Past) -> Vec<&str> {
        past.files.iter().map(|entry| entry.path.as_str()).collect()
    }

    #[test]
    fn a_line_that_was_cut_off_takes_none_with_it() {
        let folder = tempfile::TempDir::new().unwrap();
        let (journal, past) = Journal::open(folder.path()).unwrap();
        assert!(past.recipe.is_none() && past.files.is_empty());
        journal.restart(&recipe("mlc"), vec!["old".into()]).unwrap();
        journal.announce(entry("a")).unwrap();
        journal.announce(entry("b")).unwrap();
        drop(journal);
        let path = folder.path().join(JOURNAL);
        let text = fs_err::read(&path).unwrap();
        fs_err::write(&path, &text[..text.len() - 5]).unwrap();

        let (journal, past) = Journal::open(folder.path()).unwrap();
        assert_eq!((past.recipe.clone(), paths(&past)), (Some(recipe("mlc")), vec!["a"]));
        assert_eq!(past.stale, ["old"]);
        // What is begun anew counts, whatever stood there.
        journal.restart(&recipe("best"), Vec::new()).unwrap();
        journal.announce(entry("c")).unwrap();
        drop(journal);
        let (_journal, past) = Journal::open(folder.path()).unwrap();
        assert_eq!((past.recipe.clone(), paths(&past)), (Some(recipe("best")), vec!["c"]));
        assert_eq!(past.stale, ["old", "a"]);
    }

    #[test]
    fn a_folder_that_takes_no_files_is_named() {
        let folder = tempfile::TempDir::new().unwrap();
        let error = Journal::open(&folder.path().join("gone")).unwrap_err();
        assert!(error.to_string().contains("gone") && error.hint().is_some(), "{error}");
    }

    #[test]
    fn one_at_a_time() {
        let folder = tempfile::TempDir::new().unwrap();
        let (journal, _) = Journal::open(folder.path()).unwrap();
        assert!(matches!(Journal::open(folder.path()), Err(PackError::Locked(_))));
        journal.remove().unwrap();
        // Nobody is left, and neither is the file.
        let (_journal, past) = Journal::open(folder.path()).unwrap();
        assert!(past.recipe.is_none());
    }
}
