//! A bundle in a folder.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
use std::ops::Range;
use std::path::PathBuf;

use rayon::prelude::*;

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
        // As much as there will be: a range may come from a manifest that claims anything.
        let there = file.metadata()?.len().saturating_sub(range.start);
        let wanted = range.end.saturating_sub(range.start);
        let mut bytes = Vec::with_capacity(usize::try_from(wanted.min(there)).unwrap_or_default());
        file.seek(SeekFrom::Start(range.start))?;
        file.take(wanted).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn whole(&self, path: &str, range: Range<u64>) -> Result<Vec<u8>, SourceError> {
        let Range { start, end: expected } = range;
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

impl Source for Folder {
    async fn file(&self, path: &str) -> Result<Option<Vec<u8>>, SourceError> {
        match std::fs::read(self.path.join(path)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(SourceError::Io { path: path.into(), source }),
        }
    }

    async fn range(&self, path: &str, range: Range<u64>) -> Result<Vec<u8>, SourceError> {
        self.whole(path, range)
    }

    async fn ranges(&self, ranges: &[(&str, Range<u64>)]) -> Result<Vec<Vec<u8>>, SourceError> {
        // Copying from the system's cache takes as long as hashing.
        let read: Vec<_> =
            ranges.par_iter().map(|(path, range)| self.whole(path, range.clone())).collect();
        // The first error, whichever came first.
        read.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use pollster::block_on;

    use super::*;

    #[test]
    fn ranges_are_those_of_each_and_the_first_error_counts() {
        let here = Folder::new(env!("CARGO_MANIFEST_DIR"));
        let whole = block_on(here.file("Cargo.toml")).expect("reads").expect("is there");
        let end = whole.len() as u64;
        let read = block_on(here.ranges(&[("Cargo.toml", 3..9), ("Cargo.toml", end - 2..end)]));
        assert_eq!(read.expect("reads"), [&whole[3..9], &whole[whole.len() - 2..]]);
        let past = |by: u64| ("Cargo.toml", 0..end + by);
        let error = block_on(here.ranges(&[("Cargo.toml", 0..1), past(7), past(5)]));
        let found = error.expect_err("ends before");
        assert!(
            matches!(found, SourceError::Truncated { expected, .. } if expected == end + 7),
            "{found}"
        );
    }
}
