//! The files of a bundle, as `packlight.json` lists them: what a reader asks for, and which files on the host hold it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::names::{Names, content_id, split_id, strip_part};
use super::packlight::{PACKLIGHT, Packlight};
use crate::file_name::is_file_name;

/// Header rules for hosts that read such a file. No client asks for it, so it keeps its name.
pub const HEADERS: &str = "_headers";

/// A file on the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct File {
    /// Its name.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// What a web server should call it.
    pub media_type: String,
    /// SHA-256 of each chunk. A file of one chunk has its own hash here.
    pub sha256: Vec<String>,
    /// What of the bundle it holds, where that is not simply the file of its own name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holds: Option<Span>,
    /// The file of the bundle whose bytes it repeats, for clients that look for this very name. Whoever reads
    /// `packlight.json` has no need of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias_of: Option<String>,
}

/// Some or all bytes of a file of the bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Span {
    /// The name that readers ask for, `params_shard_0.bin` or `tokenizer.json`.
    pub file: String,
    /// Size of that file.
    pub bytes: u64,
    /// First byte held.
    pub start: u64,
    /// The byte after the last one held.
    pub end: u64,
}

impl Span {
    /// Whether other files hold the rest.
    pub fn is_part(&self) -> bool {
        self.end - self.start < self.bytes
    }
}

impl File {
    /// The byte ranges of its chunks.
    pub fn chunks(&self, chunk_bytes: u64) -> impl Iterator<Item = (Range<u64>, &str)> {
        self.sha256.iter().enumerate().map(move |(i, hash)| {
            let start = i as u64 * chunk_bytes;
            (start..(start + chunk_bytes).min(self.bytes), hash.as_str())
        })
    }

    /// The file of the bundle of which it holds bytes; an alias holds none.
    pub fn holds(&self) -> Option<&str> {
        match (&self.alias_of, &self.holds) {
            (Some(_), _) => None,
            (None, Some(span)) => Some(&span.file),
            (None, None) => Some(&self.path),
        }
    }
}

impl Packlight {
    /// The entry of a file on the host.
    pub fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// The files on the host that hold a file of the bundle, in the order of their bytes: one, or its parts. None
    /// where the bundle has no such file.
    pub fn parts<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a File> {
        self.files.iter().filter(move |file| file.holds() == Some(name))
    }

    /// Size of a file of the bundle.
    pub fn size(&self, name: &str) -> Option<u64> {
        let mut parts = self.parts(name).map(|file| file.bytes).peekable();
        parts.peek()?;
        Some(parts.sum())
    }
}

impl Packlight {
    /// What is wrong with the list of files: every file must have a name of its own and the right number of hashes, and
    /// every file of the bundle must be there once, whole.
    pub fn file_faults(&self) -> Vec<String> {
        let mut paths = BTreeSet::new();
        let checked = self.files.iter().map(|file| check_file(file, self, &mut paths));
        let mut faults: Vec<String> = checked.filter_map(Result::err).collect();
        let held = match check_spans(&self.files) {
            Ok(held) => held,
            Err(fault) => {
                faults.push(fault);
                return faults;
            }
        };
        let is_copy = |file: &File, name: &String| match held.get(name.as_str()).map(Vec::as_slice)
        {
            Some([one]) => {
                file.holds.is_none() && one.bytes == file.bytes && one.sha256 == file.sha256
            }
            _ => false,
        };
        for file in &self.files {
            if let Some(name) = file.alias_of.as_ref().filter(|name| !is_copy(file, name)) {
                faults.push(format!("`{}` is no copy of a file `{name}`", file.path));
            }
        }
        let unknown = self.compacted.iter().filter(|name| !held.contains_key(name.as_str()));
        faults.extend(
            unknown.map(|name| format!("compacted names `{name}`, which is no file of the bundle")),
        );
        faults
    }
}

fn check_file(
    file: &File,
    manifest: &Packlight,
    paths: &mut BTreeSet<String>,
) -> Result<(), String> {
    let path = &file.path;
    // Folders on Windows and macOS take names that differ in case only for the same.
    if !is_file_name(path)
        || path.eq_ignore_ascii_case(PACKLIGHT)
        || !paths.insert(path.to_lowercase())
    {
        return Err(format!("`{path}` is not a file name of its own"));
    }
    check_hashes(file, manifest.chunk_bytes)?;
    if let Some(cap) = manifest.max_file_bytes.filter(|&cap| file.bytes > cap) {
        return Err(format!("`{path}` has {} bytes, more than max_file_bytes, {cap}", file.bytes));
    }
    if manifest.names == Names::Hashed && file.alias_of.is_none() && path != HEADERS {
        check_id(file)?;
    }
    Ok(())
}

fn check_hashes(File { path, bytes, sha256, .. }: &File, chunk_bytes: u64) -> Result<(), String> {
    let chunks = bytes.div_ceil(chunk_bytes).max(1);
    if sha256.len() as u64 != chunks {
        let found = sha256.len();
        return Err(format!("`{path}` of {bytes} bytes needs {chunks} chunk hashes, not {found}"));
    }
    let is_hash = |hash: &String| {
        hash.len() == 64 && hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    match sha256.iter().find(|hash| !is_hash(hash)) {
        Some(hash) => Err(format!("`{path}` has `{hash}` where a SHA-256 belongs")),
        None => Ok(()),
    }
}

fn check_id(file: &File) -> Result<(), String> {
    let whole = strip_part(&file.path).unwrap_or(&file.path);
    let id = content_id(&file.sha256);
    if split_id(whole).is_some_and(|(_, found)| found == id) {
        return Ok(());
    }
    Err(format!("`{}` is not named by its content, whose id is {id}", file.path))
}

/// The parts of each file of the bundle follow each other from its first byte to its last.
fn check_spans(files: &[File]) -> Result<BTreeMap<&str, Vec<&File>>, String> {
    let mut held: BTreeMap<&str, Vec<&File>> = BTreeMap::new();
    for file in files {
        let Some(name) = file.holds() else { continue };
        let parts = held.entry(name).or_default();
        let path = &file.path;
        let Some(Span { file: _, bytes, start, end }) = file.holds else {
            if !parts.is_empty() {
                return Err(format!("`{path}` is held by other files, too"));
            }
            parts.push(file);
            continue;
        };
        if !is_file_name(name) || name.eq_ignore_ascii_case(PACKLIGHT) {
            return Err(format!("`{path}` holds `{name}`, which is not a file name"));
        }
        if start > end || end > bytes || end - start != file.bytes || (start == end && bytes > 0) {
            return Err(format!(
                "`{path}` of {} bytes cannot hold bytes {start}..{end} of the {bytes} of `{name}`",
                file.bytes
            ));
        }
        let (expected, whole) = match parts.last() {
            None => (0, bytes),
            Some(File { holds: Some(before), .. }) => (before.end, before.bytes),
            Some(_) => return Err(format!("`{name}` is held by `{path}`, too")),
        };
        if whole != bytes {
            return Err(format!("parts of `{name}` disagree about its size: {whole} and {bytes}"));
        }
        if start > expected {
            return Err(format!("bytes {expected}..{start} of `{name}` are in no file"));
        }
        if start < expected {
            return Err(format!("`{path}` holds bytes of `{name}` that an earlier file holds"));
        }
        parts.push(file);
    }
    let mut names = BTreeSet::new();
    for (name, parts) in &held {
        if !names.insert(name.to_lowercase()) {
            return Err(format!("`{name}` differs from another file in case only"));
        }
        if let Some(File { holds: Some(Span { bytes, end, .. }), .. }) = parts.last()
            && end < bytes
        {
            return Err(format!("bytes {end}..{bytes} of `{name}` are in no file"));
        }
    }
    Ok(held)
}
