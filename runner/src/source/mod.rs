//! Where a bundle's bytes come from: ranges of named files.

mod folder;

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;

pub use folder::Folder;

/// A place that holds the files of a bundle.
///
/// Asynchronous because a browser's is; a native caller blocks on it. A file's bytes stay the same while it is used:
/// parts that were verified are read again.
pub trait Source: 'static {
    /// The bytes of a small file, or `None` where there is no such file.
    fn file(&self, path: &str) -> impl Future<Output = Result<Option<Vec<u8>>, SourceError>>;

    /// Some bytes of a file; fewer than asked for is an error.
    fn range(
        &self,
        path: &str,
        range: Range<u64>,
    ) -> impl Future<Output = Result<Vec<u8>, SourceError>>;

    /// Several ranges of files: one after the other, where there is no faster way.
    fn ranges(
        &self,
        ranges: &[(&str, Range<u64>)],
    ) -> impl Future<Output = Result<Vec<Vec<u8>>, SourceError>> {
        one_by_one(self, ranges)
    }

    /// These files will be read next, in this order: a place that is far away begins to fetch them.
    fn announce(&self, _paths: &[&str]) {}
}

/// Reads ranges of files in turn.
pub async fn one_by_one<S: Source + ?Sized>(
    source: &S,
    ranges: &[(&str, Range<u64>)],
) -> Result<Vec<Vec<u8>>, SourceError> {
    let mut read = Vec::with_capacity(ranges.len());
    for (path, range) in ranges {
        read.push(source.range(path, range.clone()).await?);
    }
    Ok(read)
}

/// [`Source::range`] of a source whose type is not known.
pub(crate) trait AnySource {
    fn any_range<'a>(
        &'a self,
        path: &'a str,
        range: Range<u64>,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<u8>, SourceError>> + 'a>>;
}

impl<S: Source> AnySource for S {
    fn any_range<'a>(
        &'a self,
        path: &'a str,
        range: Range<u64>,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<u8>, SourceError>> + 'a>> {
        Box::pin(self.range(path, range))
    }
}

/// Bytes that could not be had.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("`{path}` ends at byte {found}, before byte {expected}")]
    Truncated { path: String, found: u64, expected: u64 },
    #[error("reading `{path}` failed: {source}")]
    Io { path: String, source: std::io::Error },
}
