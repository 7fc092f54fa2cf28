//! A bundle in a folder.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
use std::ops::Range;
use std::path::PathBuf;

use super::{Source, SourceError};

/// A local folder.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// The folder at a path, which need not exist yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    fn read(&self, path: &str, range: Range<u64>) -> std::io::Result<Vec<u8>> {
        let mut file = File::open(self.path.join(path))?;
        file.seek(SeekFrom::Start(range.start))?;
        let mut bytes = Vec::new();
        file.take(range.end - range.start).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

impl Source for Folder {
    async fn file(&self, path: &str) -> Result<Option<Vec<u8>>, SourceError> {
        match std::fs::read(self.path.join(path)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(SourceError::Io { path: path.into(), source }),
        }
    }

    async fn range(&self, path: &str, range: Range<u64>) -> Result<Vec<u8>, SourceError> {
        let expected = range.end;
        let start = range.start;
        let bytes = self
            .read(path, range)
            .map_err(|source| SourceError::Io { path: path.into(), source })?;
        let found = start + bytes.len() as u64;
        if found < expected {
            return Err(SourceError::Truncated { path: path.into(), found, expected });
        }
        Ok(bytes)
    }
}
