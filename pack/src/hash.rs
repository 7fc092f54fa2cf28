//! SHA-256 of every chunk of a file, taken while the file is written.

use packlight_formats::digest::hex;
use packlight_formats::manifest::packlight::File;
use sha2::{Digest, Sha256};

use crate::sidecar::media_type;

/// SHA-256 of each run of `chunk_bytes`, fed piece by piece.
#[derive(Debug)]
pub(crate) struct ChunkHasher {
    chunk_bytes: u64,
    /// Room left in the current chunk.
    room: u64,
    current: Sha256,
    done: Vec<String>,
    bytes: u64,
}

impl ChunkHasher {
    pub(crate) fn new(chunk_bytes: u64) -> Self {
        Self { chunk_bytes, room: chunk_bytes, current: Sha256::new(), done: Vec::new(), bytes: 0 }
    }

    pub(crate) fn update(&mut self, mut bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        while !bytes.is_empty() {
            if self.room == 0 {
                self.close_chunk();
            }
            let take = bytes.len().min(usize::try_from(self.room).unwrap_or(usize::MAX));
            let (now, later) = bytes.split_at(take);
            self.current.update(now);
            self.room -= now.len() as u64;
            bytes = later;
        }
    }

    fn close_chunk(&mut self) {
        self.done.push(hex(&self.current.finalize_reset()));
        self.room = self.chunk_bytes;
    }

    /// The manifest's entry for the file; an empty file has one hash, of nothing.
    pub(crate) fn finish(mut self, path: String) -> File {
        self.close_chunk();
        File { media_type: media_type(&path).into(), path, bytes: self.bytes, sha256: self.done }
    }
}
