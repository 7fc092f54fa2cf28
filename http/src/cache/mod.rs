//! What was downloaded, by its SHA-256.
//!
//! - `chunks/<aa>/<sha256>`: a chunk of any bundle's files, or a packlight.json. Bundles that share bytes share them
//!   here, and a download that was interrupted goes on at the chunk it was at.
//! - `bundles/<sha256 of the URL>.json`: which packlight.json a URL had, so that a bundle runs without the network.
//! - `checkpoints/<repository>/<commit>/`: whole files, because a converter maps them, and
//!   `checkpoints/<sha256 of the address>.json`: which commit a revision was, once all of that is there. Several may
//!   name one commit, and none one whose download was interrupted or whose branch has moved on.
//!
//! Files appear whole, by renaming; two processes at worst download the same thing twice. There is no fsync: every
//! chunk is hashed again before its first use, and one that does not match is thrown away.

mod evict;

use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

pub use evict::{Cached, Kind};
use packlight_formats::digest::sha256;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tempfile::NamedTempFile;

use crate::error::HttpError;

/// A folder of downloads.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

/// What a bundle's URL had when it was last asked.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct BundleEntry {
    /// Of the folder.
    pub(crate) url: String,
    /// Of packlight.json, for asking whether it has changed.
    pub(crate) etag: Option<String>,
    /// Of packlight.json, which is among the chunks.
    pub(crate) sha256: String,
}

impl Cache {
    /// The cache in a folder, which need not exist yet.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// `$XDG_CACHE_HOME/packlight`, or where the system keeps such things.
    pub fn default_folder() -> Option<PathBuf> {
        let set =
            |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let home = if cfg!(windows) { set("LOCALAPPDATA") } else { None };
        let caches = set("XDG_CACHE_HOME").or(home);
        let caches = caches.or_else(|| Some(std::env::home_dir()?.join(".cache")))?;
        Some(caches.join("packlight"))
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.root
    }

    fn chunk(&self, hash: &str) -> PathBuf {
        self.root.join("chunks").join(hash.get(..2).unwrap_or("00")).join(hash)
    }

    /// Whether there is a chunk, sound or not.
    pub(crate) fn has(&self, hash: &str) -> bool {
        self.chunk(hash).is_file()
    }

    /// An error where the disk has no room for so many bytes.
    pub(crate) fn require(&self, needed: u64) -> Result<(), HttpError> {
        let folder = &self.root;
        let free = fs_err::create_dir_all(folder).and_then(|()| fs4::available_space(folder));
        let free = free.map_err(|error| HttpError::cache(folder, error))?;
        if needed > free {
            return Err(HttpError::NoSpace { folder: folder.clone(), needed, free });
        }
        Ok(())
    }

    /// A chunk as it should be; one that is not is thrown away.
    pub(crate) fn verified(&self, hash: &str) -> Option<Vec<u8>> {
        let path = self.chunk(hash);
        let bytes = fs_err::read(&path).ok()?;
        if sha256(&bytes) == hash {
            return Some(bytes);
        }
        // If it stays, the next reader throws it away.
        fs_err::remove_file(&path).ok();
        None
    }

    /// Some bytes of a chunk that was verified before; `None` where it has been evicted since.
    pub(crate) fn read(&self, hash: &str, range: Range<u64>) -> Option<Vec<u8>> {
        let length = usize::try_from(range.end - range.start).ok()?;
        let mut file = fs_err::File::open(self.chunk(hash)).ok()?;
        file.seek(SeekFrom::Start(range.start)).ok()?;
        let mut bytes = vec![0; length];
        file.read_exact(&mut bytes).ok()?;
        Some(bytes)
    }

    /// Keeps a chunk, whose hash the caller has compared.
    pub(crate) fn keep(&self, hash: &str, bytes: &[u8]) -> Result<(), HttpError> {
        self.write(&self.chunk(hash), bytes)
    }

    pub(crate) fn bundle(&self, url: &str) -> Option<BundleEntry> {
        read_json(&self.bundle_path(url))
    }

    pub(crate) fn keep_bundle(&self, entry: &BundleEntry) -> Result<(), HttpError> {
        self.write_json(&self.bundle_path(&entry.url), entry)
    }

    fn bundle_path(&self, url: &str) -> PathBuf {
        self.root.join("bundles").join(format!("{}.json", sha256(url.as_bytes())))
    }

    pub(crate) fn checkpoints(&self) -> PathBuf {
        self.root.join("checkpoints")
    }

    pub(crate) fn write_json<T: Serialize>(&self, path: &Path, value: &T) -> Result<(), HttpError> {
        let json = serde_json::to_vec_pretty(value)
            .map_err(|error| HttpError::cache(path, std::io::Error::other(error)))?;
        self.write(path, &json)
    }

    /// Writes a file that appears whole or not at all.
    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), HttpError> {
        let folder = path.parent().unwrap_or(&self.root);
        let write = || {
            fs_err::create_dir_all(folder)?;
            let mut file = NamedTempFile::new_in(folder)?;
            file.write_all(bytes)?;
            match file.persist(path) {
                Ok(_) => Ok(()),
                // On Windows, where another process has it open: then it is there.
                Err(error)
                    if error.error.kind() == ErrorKind::PermissionDenied && path.is_file() =>
                {
                    Ok(())
                }
                Err(error) => Err(error.error),
            }
        };
        write().map_err(|source| HttpError::cache(folder, source))
    }
}

/// A file that may be missing or damaged. Being read is being used, which is what eviction goes by.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let value = serde_json::from_slice(&fs_err::read(path).ok()?).ok()?;
    if let Ok(file) = fs_err::OpenOptions::new().append(true).open(path) {
        file.file().set_modified(SystemTime::now()).ok();
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_chunk_is_thrown_away() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path());
        let hash = sha256(b"chunk");
        cache.keep(&hash, b"chunk").unwrap();
        assert_eq!(cache.read(&hash, 1..3).unwrap(), b"hu");
        assert_eq!(cache.read(&hash, 1..9), None);
        fs_err::write(cache.chunk(&hash), b"chonk").unwrap();
        assert_eq!(cache.verified(&hash), None);
        assert!(!cache.chunk(&hash).exists());
        cache.keep(&hash, b"chunk").unwrap();
        assert_eq!(cache.verified(&hash).unwrap(), b"chunk");
    }

    #[test]
    fn processes_may_write_the_same_chunk_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path());
        let bytes = vec![7; 1 << 16];
        let hash = sha256(&bytes);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        cache.keep(&hash, &bytes).unwrap();
                        assert_eq!(cache.verified(&hash).as_deref(), Some(&bytes[..]));
                    }
                });
            }
        });
    }

    #[test]
    fn a_place_that_cannot_be_written_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        fs_err::write(folder.path().join("file"), b"").unwrap();
        let cache = Cache::new(folder.path().join("file"));
        let error = cache.keep(&sha256(b""), b"").unwrap_err();
        assert!(error.hint().unwrap().contains("--cache"), "{error}");
    }
}
