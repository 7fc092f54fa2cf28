//! Shards come in chunks that know nothing of records.

use packlight_formats::manifest::tensor_cache::Shard;

use crate::executor::WeightSink;

/// The longest piece that is handed on.
const PIECE_BYTES: usize = 8 << 20;

/// Cuts the chunks of a shard into pieces of its records.
pub(super) struct Cutter<'a> {
    shard: &'a Shard,
    /// Position in the shard.
    at: u64,
    /// The record being filled.
    record: usize,
    /// Bytes of it that were handed on.
    done: u64,
    /// Bytes of it that were not: fewer than four.
    held: Vec<u8>,
}

impl<'a> Cutter<'a> {
    pub(super) fn new(shard: &'a Shard) -> Self {
        Self { shard, at: 0, record: 0, done: 0, held: Vec::new() }
    }

    /// Takes the next bytes of the shard.
    pub(super) fn push<W: WeightSink>(
        &mut self,
        mut bytes: &[u8],
        sink: &mut W,
    ) -> Result<(), W::Error> {
        while let Some(record) = self.shard.records.get(self.record) {
            // Records may have gaps between them, but never overlap.
            let received = self.done + self.held.len() as u64;
            let gap = (record.byte_offset + received).saturating_sub(self.at);
            let skip = usize::try_from(gap).unwrap_or(usize::MAX).min(bytes.len());
            let wanted = usize::try_from(record.nbytes - received).unwrap_or(usize::MAX);
            let (mut new, rest) = bytes[skip..].split_at(wanted.min(bytes.len() - skip));
            bytes = rest;
            self.at += (skip + new.len()) as u64;

            let complete = received + new.len() as u64 == record.nbytes;
            let spec = record.spec();
            if !self.held.is_empty() {
                let (first, others) = new.split_at(new.len().min(4 - self.held.len()));
                new = others;
                self.held.extend_from_slice(first);
                if complete || self.held.len() == 4 {
                    sink.write(&spec, self.done, &self.held)?;
                    self.done += self.held.len() as u64;
                    self.held.clear();
                }
            }
            let (ready, odd) = new.split_at(if complete { new.len() } else { new.len() / 4 * 4 });
            for piece in ready.chunks(PIECE_BYTES) {
                sink.write(&spec, self.done, piece)?;
                self.done += piece.len() as u64;
            }
            self.held.extend_from_slice(odd);
            if !complete {
                break;
            }
            self.record += 1;
            self.done = 0;
        }
        // What follows the last record belongs to none.
        self.at += bytes.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use packlight_formats::manifest::tensor_cache::ShardRecord;
    use packlight_formats::{Dtype, RecordSpec};

    use super::*;
    use crate::bundle::BundleError;

    #[derive(Default)]
    struct Collect(BTreeMap<String, Vec<u8>>);

    impl WeightSink for Collect {
        type Error = BundleError;

        fn write(
            &mut self,
            record: &RecordSpec,
            offset: u64,
            bytes: &[u8],
        ) -> Result<(), BundleError> {
            let held = self.0.entry(record.name.clone()).or_default();
            assert_eq!(held.len() as u64, offset);
            assert_eq!(offset % 4, 0);
            held.extend_from_slice(bytes);
            Ok(())
        }
    }

    /// Whatever the chunk size, each record gets its own bytes, in pieces at multiples of four, gaps left out.
    #[test]
    fn cuts_records_at_any_chunk_size() {
        let record = |name: &str, halves: u64, offset| {
            ShardRecord::new(&RecordSpec::new(name, Dtype::Float16, [halves]), offset)
        };
        let records = vec![record("a", 5, 0), record("b", 1, 10), record("c", 9, 16)];
        let shard = Shard {
            data_path: "s".into(),
            format: String::new(),
            nbytes: 40,
            records,
            md5: String::new(),
        };
        let bytes: Vec<u8> = (0..40).collect();
        for size in 1..=40 {
            let (mut cutter, mut sink) = (Cutter::new(&shard), Collect::default());
            for chunk in bytes.chunks(size) {
                cutter.push(chunk, &mut sink).expect("collects");
            }
            assert_eq!(sink.0["a"], bytes[0..10], "chunks of {size}");
            assert_eq!(sink.0["b"], bytes[10..12], "chunks of {size}");
            assert_eq!(sink.0["c"], bytes[16..34], "chunks of {size}");
        }
    }
}
