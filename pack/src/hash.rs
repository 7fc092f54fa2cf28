//! SHA-256 of every chunk of a file, taken while the file is written.

use packlight_formats::digest::hex;
use packlight_formats::manifest::packlight::CHUNK_BYTES;
use sha2::{Digest, Sha256};

/// SHA-256 of each run of [`CHUNK_BYTES`], fed piece by piece.
#[derive(Debug)]
pub(crate) struct ChunkHasher {
    /// Room left in the current chunk.
    room: u64,
    current: Sha256,
    done: Vec<String>,
}

impl ChunkHasher {
    pub(crate) fn new() -> Self {
        Self { room: CHUNK_BYTES, current: Sha256::new(), done: Vec::new() }
    }

    pub(crate) fn update(&mut self, mut bytes: &[u8]) {
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
        self.room = CHUNK_BYTES;
    }

    /// The hashes; an empty file has one, of nothing.
    pub(crate) fn finish(mut self) -> Vec<String> {
        self.close_chunk();
        self.done
    }
}

/// The hashes of a file in memory.
pub(crate) fn chunk_hashes(bytes: &[u8]) -> Vec<String> {
    let mut hasher = ChunkHasher::new();
    hasher.update(bytes);
    hasher.finish()
}
