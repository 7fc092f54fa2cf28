//! The files of a bundle: whole ones and parts, verified chunk by chunk.

use std::ops::Range;
use std::sync::Arc;

use packlight_formats::digest::sha256;
use packlight_formats::manifest::{File, Packlight};
use rayon::prelude::*;

use super::{BundleError, Trust};
use crate::source::Source;

/// Bytes of a file that are reserved before any of it is read.
const MOST_RESERVED: u64 = 64 << 20;

/// The files of a bundle.
#[derive(Debug)]
pub(super) struct Files<S> {
    pub(super) source: Arc<S>,
    pub(super) trust: Trust,
    /// Ours; a plain MLC bundle has none.
    pub(super) manifest: Option<Packlight>,
}

/// Files that joined are one of the bundle's: the path of each, and which bytes of the whole it holds.
#[derive(Clone, Debug)]
pub(crate) struct Parts(Vec<(String, Range<u64>)>);

impl Parts {
    /// A file that is there as it is.
    pub(crate) fn whole(path: &str) -> Self {
        Self(vec![(path.into(), 0..u64::MAX)])
    }

    /// The files, in order.
    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(path, _)| path.as_str())
    }

    /// Where some bytes of the whole are: ranges of files, in order.
    pub(crate) fn cut(&self, range: Range<u64>) -> impl Iterator<Item = (&str, Range<u64>)> {
        self.0.iter().filter_map(move |(path, held)| {
            let (start, end) = (range.start.max(held.start), range.end.min(held.end));
            (start < end).then(|| (path.as_str(), start - held.start..end - held.start))
        })
    }
}

/// One of the chunks that a file's hashes are of.
#[derive(Clone, Debug)]
pub(super) struct Chunk<'a> {
    pub(super) file: &'a File,
    index: usize,
    range: Range<u64>,
    sha256: &'a str,
}

impl<'a> Chunk<'a> {
    /// All of a file, in order.
    pub(super) fn all(manifest: &Packlight, file: &'a File) -> impl Iterator<Item = Self> {
        let chunks = file.chunks(manifest.chunk_bytes).enumerate();
        chunks.map(move |(index, (range, sha256))| Self { file, index, range, sha256 })
    }
}

impl<S: Source> Files<S> {
    /// A file of the bundle, joined from its parts.
    pub(super) async fn read(&self, name: &str) -> Result<Option<Vec<u8>>, BundleError> {
        let Some(manifest) = &self.manifest else { return Ok(self.source.file(name).await?) };
        let mut bytes = None;
        for file in manifest.parts(name) {
            let whole = file.holds.as_ref().map_or(file.bytes, |span| span.bytes);
            // As much as there will be, not up to twice of it; what a manifest claims is not allocated on its word alone.
            let bytes = bytes.get_or_insert_with(|| {
                Vec::with_capacity(usize::try_from(whole.min(MOST_RESERVED)).unwrap_or_default())
            });
            for chunk in Chunk::all(manifest, file) {
                for read in self.chunks(&[chunk]).await? {
                    bytes.extend(read);
                }
            }
        }
        Ok(bytes)
    }

    /// The files that hold a file of the bundle.
    pub(super) fn parts(&self, name: &str) -> Parts {
        let Some(manifest) = &self.manifest else { return Parts::whole(name) };
        let part = |file: &File| {
            let start = file.holds.as_ref().map_or(0, |span| span.start);
            (file.path.clone(), start..start + file.bytes)
        };
        Parts(manifest.parts(name).map(part).collect())
    }

    /// Some bytes of a file of the bundle, which are not compared with any hash.
    pub(super) async fn range(
        &self,
        name: &str,
        range: Range<u64>,
    ) -> Result<Vec<u8>, BundleError> {
        let mut bytes = Vec::new();
        for (path, range) in self.parts(name).cut(range) {
            bytes.extend(self.source.range(path, range).await?);
        }
        Ok(bytes)
    }

    /// Chunks of files, read and verified on all threads; unless told not to verify.
    pub(super) async fn chunks(&self, which: &[Chunk<'_>]) -> Result<Vec<Vec<u8>>, BundleError> {
        let ranges: Vec<_> =
            which.iter().map(|chunk| (chunk.file.path.as_str(), chunk.range.clone())).collect();
        let read = self.source.ranges(&ranges).await.map_err(BundleError::unreadable)?;
        if self.trust == Trust::Nothing {
            let is_right = |(bytes, chunk): (&Vec<u8>, &Chunk<'_>)| sha256(bytes) == chunk.sha256;
            let is_right: Vec<bool> = read.par_iter().zip(which).map(is_right).collect();
            if let Some(wrong) = is_right.iter().position(|is_right| !is_right) {
                let Chunk { file, index, range: Range { start, end }, .. } = which[wrong];
                let (file, chunk) = (file.path.clone(), index);
                return Err(BundleError::WrongChunk { file, chunk, start, end });
            }
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_found_in_the_parts_that_hold_it() {
        let parts = Parts(vec![("a".into(), 0..10), ("b".into(), 10..20), ("c".into(), 20..25)]);
        let cut = |range| parts.cut(range).collect::<Vec<_>>();
        assert_eq!(cut(3..7), [("a", 3..7)]);
        assert_eq!(cut(8..22), [("a", 8..10), ("b", 0..10), ("c", 0..2)]);
        assert_eq!(cut(10..10), []);
        assert_eq!(Parts::whole("w").cut(5..6).collect::<Vec<_>>(), [("w", 5..6)]);
    }
}
