//! Shards are written and hashed while they are filled. The hashes of a shard are chains that one thread each has to
//! follow, so where there are more processors, several shards are filled side by side.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use fs_err::File;
use md5::{Digest as _, Md5};
use packlight_formats::digest::hex;
use rayon::prelude::*;
use tempfile::NamedTempFile;

use crate::budget::{Budget, Held};
use crate::claim::{Claim, Kept};
use crate::draft::ShardHashes;
use crate::error::PackError;
use crate::hash::ChunkHasher;
use crate::journal::Entry;

/// The most shards that are filled side by side.
const LANES: usize = 4;
/// Bytes that may wait for the threads of a lane: a shard of the usual size.
const LANE_BYTES: usize = 32 << 20;

/// Some bytes of a shard.
#[derive(Clone)]
struct Piece {
    shard: usize,
    offset: u64,
    bytes: Arc<Held>,
}

/// A thread and the queue that feeds it.
struct Worker<T> {
    queue: Sender<Piece>,
    thread: JoinHandle<T>,
}

impl<T: Send + 'static> Worker<T> {
    fn start(work: impl FnOnce(&Receiver<Piece>) -> T + Send + 'static) -> Self {
        let (queue, pieces) = channel();
        Self { queue, thread: std::thread::spawn(move || work(&pieces)) }
    }

    fn finish(self) -> std::io::Result<T> {
        drop(self.queue);
        self.thread.join().map_err(|_| std::io::Error::other("a writing thread panicked"))
    }
}

/// One thread writes and takes SHA-256, another takes MD5.
struct Lane {
    disk: Worker<Result<Kept, PackError>>,
    md5: Worker<Result<BTreeMap<usize, String>, PackError>>,
}

/// Shard `i` is filled by lane `i % lanes`.
pub(crate) struct ShardWriter {
    claim: Arc<Claim>,
    lanes: Vec<Lane>,
    budget: Budget,
}

impl ShardWriter {
    pub(crate) fn start(claim: Arc<Claim>) -> Self {
        let lane = |_| {
            let (writes, hashes) = (Arc::clone(&claim), Arc::clone(&claim));
            Lane {
                disk: Worker::start(move |pieces| write_parts(&writes, pieces)),
                md5: Worker::start(move |pieces| md5_shards(&hashes, pieces)),
            }
        };
        // Half of the processors are left to what makes the bytes.
        let lanes: Vec<Lane> =
            (0..(rayon::current_num_threads() / 2).clamp(1, LANES)).map(lane).collect();
        let budget = Budget::new(lanes.len() * LANE_BYTES);
        Self { claim, lanes, budget }
    }

    /// Takes some bytes of a shard; those of a shard come in order, but for what is there already.
    pub(crate) fn push(&self, shard: usize, offset: u64, bytes: Vec<u8>) -> Result<(), PackError> {
        let Lane { disk, md5 } = &self.lanes[shard % self.lanes.len()];
        let piece = Piece { shard, offset, bytes: Arc::new(self.budget.hold(bytes)) };
        for queue in [&md5.queue, &disk.queue] {
            let sent = queue.send(piece.clone());
            sent.map_err(|_| std::io::Error::from(std::io::ErrorKind::BrokenPipe))?;
        }
        Ok(())
    }

    /// Waits for the threads. Parts that did not get all their bytes have no name and are gone.
    pub(crate) fn finish(self) -> Result<Filled, PackError> {
        let finished = self.lanes.into_iter().map(|lane| (lane.disk.finish(), lane.md5.finish()));
        let (disks, md5s): (Vec<_>, Vec<_>) = finished.unzip();
        let (mut written, mut md5) = (Kept::new(), BTreeMap::new());
        // The disk threads first: if one failed, the others have only run into the same.
        for parts in disks {
            written.extend(parts??);
        }
        for sums in md5s {
            md5.extend(sums??);
        }
        let stray = || std::io::Error::other("a writing thread is still there");
        let claim = Arc::into_inner(self.claim).ok_or_else(stray)?;
        written.extend(claim.kept.clone());
        Ok(Filled { claim, written, md5 })
    }
}

/// What was pushed is on the disk.
pub(crate) struct Filled {
    pub(crate) claim: Claim,
    /// Parts that have their name.
    written: Kept,
    /// Of the shards that came whole.
    md5: BTreeMap<usize, String>,
}

impl Filled {
    /// The hashes of every shard, all of which must be whole.
    pub(crate) fn hashes(&self) -> Result<Vec<ShardHashes>, PackError> {
        let draft = &self.claim.draft;
        let hashes = (0..draft.shards()).into_par_iter().map(|shard| {
            let parts = (0..draft.ranges(shard).len()).map(|part| {
                let missing = || std::io::Error::other("a part of a shard was not filled");
                self.written.get(&(shard, part)).cloned().ok_or_else(missing)
            });
            let parts = parts.collect::<Result<Vec<_>, _>>()?;
            let md5 = match self.md5.get(&shard).or_else(|| self.claim.noted_md5(shard)) {
                Some(md5) => md5.clone(),
                None => md5_of_files(&self.claim, shard, &parts)?,
            };
            check_md5(&self.claim, shard, &parts, &md5)?;
            Ok(ShardHashes { parts, md5 })
        });
        hashes.collect()
    }
}

/// A part that is being filled.
struct Open {
    part: usize,
    file: NamedTempFile,
    hasher: ChunkHasher,
}

/// The chunk hashes of every part that was written.
fn write_parts(claim: &Claim, pieces: &Receiver<Piece>) -> Result<Kept, PackError> {
    let mut open: BTreeMap<usize, Open> = BTreeMap::new();
    let mut done = Kept::new();
    for Piece { shard, offset, bytes } in pieces {
        let (mut at, mut rest) = (offset, bytes.as_slice());
        loop {
            let (part, range) = claim.draft.part_at(shard, at);
            let room = usize::try_from(range.end - at).unwrap_or(usize::MAX);
            let (now, later) = rest.split_at(room.min(rest.len()));
            if !claim.kept.contains_key(&(shard, part)) {
                if at == range.start {
                    let (file, hasher) = (claim.folder.temporary()?, ChunkHasher::new());
                    open.insert(shard, Open { part, file, hasher });
                }
                if let Some(filling) = open.get_mut(&shard) {
                    let name = &claim.draft.shard(shard).data_path;
                    let failed = |source| PackError::Write { path: name.into(), source };
                    filling.file.write_all(now).map_err(failed)?;
                    filling.hasher.update(now);
                }
                if at + now.len() as u64 == range.end
                    && let Some(filled) = open.remove(&shard)
                {
                    done.insert((shard, part), filled.close(claim, shard)?);
                }
            }
            (at, rest) = (at + now.len() as u64, later);
            if rest.is_empty() {
                break;
            }
        }
    }
    Ok(done)
}

impl Open {
    fn close(self, claim: &Claim, shard: usize) -> Result<Vec<String>, PackError> {
        let Self { part, file, hasher } = self;
        let sha256 = hasher.finish();
        let path = claim.draft.path(shard, part, &sha256);
        let entry = Entry { path, part: Some((shard, part)), sha256: sha256.clone() };
        claim.folder.name(file, entry)?;
        Ok(sha256)
    }
}

/// MD5 of the shards that come whole. Of those with parts that are there already, not all bytes do.
fn md5_shards(
    claim: &Claim,
    pieces: &Receiver<Piece>,
) -> Result<BTreeMap<usize, String>, PackError> {
    let comes_whole = |shard: usize| claim.kept.range((shard, 0)..(shard + 1, 0)).next().is_none();
    let mut open: BTreeMap<usize, Md5> = BTreeMap::new();
    let mut done = BTreeMap::new();
    for Piece { shard, offset, bytes } in pieces {
        if !comes_whole(shard) {
            continue;
        }
        let md5 = open.entry(shard).or_default();
        md5.update(bytes.as_slice());
        if offset + bytes.as_slice().len() as u64 == claim.draft.shard(shard).nbytes {
            let md5 = hex(&open.remove(&shard).unwrap_or_default().finalize());
            claim.folder.note_md5(shard, md5.clone())?;
            done.insert(shard, md5);
        }
    }
    Ok(done)
}

/// MD5 of a shard that was not written in one go.
fn md5_of_files(claim: &Claim, shard: usize, parts: &[Vec<String>]) -> Result<String, PackError> {
    let (mut md5, mut buffer) = (Md5::new(), vec![0; 1 << 20]);
    for (part, sha256) in parts.iter().enumerate() {
        let mut file = File::open(claim.folder.path().join(claim.draft.path(shard, part, sha256)))?;
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                n => md5.update(&buffer[..n]),
            }
        }
    }
    Ok(hex(&md5.finalize()))
}

/// A shard that is copied must be the one that its bundle says it is; a wrong copy does not stay for the next attempt.
fn check_md5(
    claim: &Claim,
    shard: usize,
    parts: &[Vec<String>],
    found: &str,
) -> Result<(), PackError> {
    let expected = &claim.draft.shard(shard).md5;
    if expected.is_empty() || expected == found {
        return Ok(());
    }
    for (part, sha256) in parts.iter().enumerate() {
        claim.folder.remove(&claim.draft.path(shard, part, sha256))?;
    }
    Err(PackError::WrongMd5 { file: claim.draft.shard(shard).data_path.clone() })
}
