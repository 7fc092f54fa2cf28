//! Writes a bundle while it is being made: shards as their bytes arrive, then small files, then the manifests.

use std::sync::Arc;

use packlight_formats::digest::sha256;
use packlight_formats::manifest::packlight::PACKLIGHT;
use packlight_formats::record::RecordSpec;

use crate::claim::Claim;
use crate::draft::ShardHashes;
use crate::error::PackError;
use crate::layout::ShardPlan;
use crate::records::RecordFeed;
use crate::shards::ShardWriter;

/// A finished bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    pub files: usize,
    /// All files, `packlight.json` included.
    pub bytes: u64,
    /// SHA-256 of `packlight.json`, which names every other byte.
    pub sha256: String,
}

impl Claim {
    /// Writes a bundle from its records. `produce` is handed a function that takes the pieces of record after record,
    /// each record's bytes in order; records that are not [`Claim::wanted`] may be left out.
    pub fn write_records<E: From<PackError>>(
        self,
        records: &[RecordSpec],
        shards: &[ShardPlan],
        produce: impl FnOnce(&mut dyn FnMut(usize, Vec<u8>) -> Result<(), E>) -> Result<(), E>,
    ) -> Result<Written, E> {
        let mut feed = RecordFeed::new(records, shards, self.wanted(shards));
        self.write(|push| {
            produce(&mut |record, bytes| match feed.place(record, bytes.len() as u64)? {
                Some((shard, offset)) => push(shard, offset, bytes),
                None => Ok(()),
            })?;
            Ok(feed.finish()?)
        })
    }

    /// Writes a bundle from the bytes of its shards. `produce` is handed a function that takes a shard, an offset and
    /// the bytes there, those of each shard in order.
    pub(crate) fn write<E: From<PackError>>(
        self,
        produce: impl FnOnce(&mut dyn FnMut(usize, u64, Vec<u8>) -> Result<(), E>) -> Result<(), E>,
    ) -> Result<Written, E> {
        let writer = ShardWriter::start(Arc::new(self));
        let produced = produce(&mut |shard, offset, bytes| Ok(writer.push(shard, offset, bytes)?));
        // A failed thread closes its queue, which `produce` reports as a broken pipe: its own error says why.
        let filled = match (produced, writer.finish()) {
            (_, Err(error)) => return Err(error.into()),
            (Err(error), Ok(_)) => return Err(error),
            (Ok(()), Ok(filled)) => filled,
        };
        let hashes = filled.hashes()?;
        Ok(filled.claim.write_manifests(&hashes)?)
    }

    fn write_manifests(self, hashes: &[ShardHashes]) -> Result<Written, PackError> {
        let manifests = self.draft.manifests(hashes)?;
        for small in self.draft.small().iter().chain(&manifests.caches) {
            for (file, bytes) in small.files() {
                self.folder.write(&file.path, bytes)?;
            }
        }
        self.folder.write(PACKLIGHT, &manifests.json)?;
        self.folder.finish()?;
        let files = &manifests.packlight.files;
        let bytes = files.iter().map(|file| file.bytes).sum::<u64>() + manifests.json.len() as u64;
        Ok(Written { files: files.len() + 1, bytes, sha256: sha256(&manifests.json) })
    }
}
