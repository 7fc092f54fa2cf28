//! Shards are written and hashed while they are filled, on two threads of their own.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use md5::{Digest as _, Md5};
use packlight_formats::digest::hex;
use packlight_formats::manifest::packlight::{CHUNK_BYTES, File};
use packlight_formats::record::RecordSpec;
use tempfile::NamedTempFile;

use crate::error::PackError;
use crate::folder::Folder;
use crate::hash::ChunkHasher;
use crate::layout::ShardPlan;

/// Pieces waiting for a thread; with pieces of at most 1 MiB this bounds the memory in flight.
const QUEUE: usize = 32;

/// A shard that is on the disk under its name.
#[derive(Debug)]
pub(crate) struct HashedShard {
    pub(crate) file: File,
    pub(crate) md5: String,
}

/// A piece of a shard, or its end.
enum Message {
    Bytes(usize, Arc<Vec<u8>>),
    End(usize),
}

/// A thread and the queue that feeds it.
struct Worker<T> {
    queue: SyncSender<Message>,
    thread: JoinHandle<T>,
}

impl<T: Send + 'static> Worker<T> {
    fn start(work: impl FnOnce(&Receiver<Message>) -> T + Send + 'static) -> Self {
        let (queue, messages) = sync_channel(QUEUE);
        Self { queue, thread: std::thread::spawn(move || work(&messages)) }
    }

    fn finish(self) -> std::io::Result<T> {
        drop(self.queue);
        self.thread.join().map_err(|_| std::io::Error::other("a writing thread panicked"))
    }
}

/// One thread writes and takes SHA-256, another takes MD5.
pub(crate) struct ShardWriter {
    disk: Worker<Result<BTreeMap<usize, File>, PackError>>,
    md5: Worker<BTreeMap<usize, String>>,
    /// Shard of each record, by index.
    shard_of: Vec<usize>,
    /// Bytes received of each record.
    received: Vec<u64>,
    /// Bytes still to come of each shard.
    missing: Vec<u64>,
}

impl ShardWriter {
    pub(crate) fn start(folder: Arc<Folder>, shards: &[ShardPlan]) -> Self {
        let records = shards.iter().map(|shard| shard.records.len()).sum();
        let mut shard_of = vec![0; records];
        for (i, shard) in shards.iter().enumerate() {
            shard.records.iter().for_each(|&(record, _)| shard_of[record] = i);
        }
        Self {
            disk: Worker::start(move |messages| write_shards(&folder, messages)),
            md5: Worker::start(md5_shards),
            shard_of,
            received: vec![0; records],
            missing: shards.iter().map(|shard| shard.bytes).collect(),
        }
    }

    pub(crate) fn push(
        &mut self,
        records: &[RecordSpec],
        shards: &[ShardPlan],
        record: usize,
        bytes: Vec<u8>,
    ) -> Result<(), PackError> {
        let shard = self.shard_of[record];
        let (length, expected) = (bytes.len() as u64, records[record].stored_bytes());
        self.received[record] += length;
        let written = shards[shard].bytes - self.missing[shard];
        let start = shards[shard]
            .records
            .iter()
            .find(|(i, _)| *i == record)
            .map_or(0, |(_, offset)| *offset);
        // Records of a shard arrive one after the other, so a gap or a surplus shows in the running total.
        if self.received[record] > expected || written + length != start + self.received[record] {
            let (found, record) = (self.received[record], records[record].name.clone());
            return Err(PackError::WrongLength { record, found, expected });
        }
        self.missing[shard] -= length;
        self.send(&Message::Bytes(shard, Arc::new(bytes)))?;
        if self.missing[shard] == 0 { self.send(&Message::End(shard)) } else { Ok(()) }
    }

    fn send(&self, message: &Message) -> Result<(), PackError> {
        for queue in [&self.disk.queue, &self.md5.queue] {
            let copy = match message {
                Message::Bytes(shard, bytes) => Message::Bytes(*shard, Arc::clone(bytes)),
                Message::End(shard) => Message::End(*shard),
            };
            queue.send(copy).map_err(|_| std::io::Error::from(std::io::ErrorKind::BrokenPipe))?;
        }
        Ok(())
    }

    /// Waits for the threads. Shards that did not get all their bytes have no name and are gone.
    pub(crate) fn finish(self) -> Result<Vec<HashedShard>, PackError> {
        let files = self.disk.finish()??;
        let mut md5 = self.md5.finish()?;
        Ok(files
            .into_iter()
            .map(|(i, file)| HashedShard { file, md5: md5.remove(&i).unwrap_or_default() })
            .collect())
    }
}

fn write_shards(
    folder: &Folder,
    messages: &Receiver<Message>,
) -> Result<BTreeMap<usize, File>, PackError> {
    let mut open: BTreeMap<usize, (NamedTempFile, ChunkHasher)> = BTreeMap::new();
    let mut done = BTreeMap::new();
    for message in messages {
        match message {
            Message::Bytes(shard, bytes) => {
                if let std::collections::btree_map::Entry::Vacant(e) = open.entry(shard) {
                    e.insert((folder.temporary()?, ChunkHasher::new(CHUNK_BYTES)));
                }
                if let Some((file, hasher)) = open.get_mut(&shard) {
                    let failed = |source| PackError::Write { path: shard_name(shard), source };
                    file.write_all(&bytes).map_err(failed)?;
                    hasher.update(&bytes);
                }
            }
            Message::End(shard) => {
                if let Some((file, hasher)) = open.remove(&shard) {
                    folder.name(file, &shard_name(shard))?;
                    done.insert(shard, hasher.finish(shard_name(shard)));
                }
            }
        }
    }
    Ok(done)
}

fn md5_shards(messages: &Receiver<Message>) -> BTreeMap<usize, String> {
    let mut open: BTreeMap<usize, Md5> = BTreeMap::new();
    let mut done = BTreeMap::new();
    for message in messages {
        match message {
            Message::Bytes(shard, bytes) => open.entry(shard).or_default().update(&*bytes),
            Message::End(shard) => {
                done.insert(shard, hex(&open.remove(&shard).unwrap_or_default().finalize()));
            }
        }
    }
    done
}

fn shard_name(shard: usize) -> String {
    format!("params_shard_{shard}.bin")
}
