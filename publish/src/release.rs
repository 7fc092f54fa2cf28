//! The bundle that is to be published, as it lies in a folder.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use fs_err::File as LocalFile;
use packlight_formats::digest::sha256;
use packlight_formats::manifest::packlight::PACKLIGHT;
use packlight_formats::manifest::{File, Packlight};

use crate::error::PublishError;

/// A bundle's folder and what its manifest says.
#[derive(Debug)]
pub struct Release {
    folder: PathBuf,
    pub(crate) manifest: Packlight,
    /// packlight.json, byte for byte.
    pub(crate) json: Bytes,
}

impl Release {
    /// Reads packlight.json and looks whether every file is there in its size. Contents are compared as they are sent;
    /// who wants to know before the first byte compares them before.
    pub fn open(folder: &Path) -> Result<Self, PublishError> {
        let json = match fs_err::read(folder.join(PACKLIGHT)) {
            Ok(json) => Bytes::from(json),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(PublishError::NoManifest(folder.into()));
            }
            Err(error) => return Err(error.into()),
        };
        let manifest = Packlight::parse(&json)?;
        for File { path, bytes, .. } in &manifest.files {
            let found = fs_err::metadata(folder.join(path)).ok().filter(std::fs::Metadata::is_file);
            if found.is_none_or(|found| found.len() != *bytes) {
                return Err(PublishError::Damaged { file: path.clone() });
            }
        }
        Ok(Self { folder: folder.into(), manifest, json })
    }

    /// SHA-256 of packlight.json, which identifies the bundle.
    pub fn sha256(&self) -> String {
        sha256(&self.json)
    }

    /// Some chunks of a file, compared with their hashes: what was fine when it was verified may have changed since.
    pub(crate) fn chunks(&self, file: &File, chunks: Range<usize>) -> Result<Bytes, PublishError> {
        let damaged = || PublishError::Damaged { file: file.path.clone() };
        let chunk_bytes = self.manifest.chunk_bytes;
        let start = chunks.start as u64 * chunk_bytes;
        let end = (chunks.end as u64 * chunk_bytes).min(file.bytes);
        let mut local = LocalFile::open(self.folder.join(&file.path))?;
        local.seek(SeekFrom::Start(start))?;
        let mut bytes = Vec::with_capacity(usize::try_from(end - start).unwrap_or_default());
        local.take(end - start).read_to_end(&mut bytes)?;
        if bytes.len() as u64 != end - start {
            return Err(damaged());
        }
        for (span, hash) in file.chunks(chunk_bytes).take(chunks.end).skip(chunks.start) {
            let within = |at: u64| usize::try_from(at - start).unwrap_or(usize::MAX);
            if sha256(&bytes[within(span.start)..within(span.end)]) != hash {
                return Err(damaged());
            }
        }
        Ok(bytes.into())
    }
}

/// What identifies the contents of a file: its SHA-256 where it has one chunk, else that of its chunks' hashes, as they
/// are spelled, one after another.
pub(crate) fn identity(file: &File) -> String {
    match &file.sha256[..] {
        [only] => only.clone(),
        chunks => sha256(chunks.concat().as_bytes()),
    }
}
