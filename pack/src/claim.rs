//! A draft and the folder that it will fill, with what an earlier, stopped attempt has left there.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;

use fs_err::File;
use rayon::prelude::*;

use crate::draft::Draft;
use crate::error::PackError;
use crate::folder::{Folder, Occupied};
use crate::hash::ChunkHasher;
use crate::journal::{Entry, Past, Recipe};
use crate::layout::ShardPlan;

/// What claiming a folder needs to know beyond the draft.
#[derive(Clone, Debug)]
pub struct ClaimOptions {
    /// What to do about files that are already there.
    pub occupied: Occupied,
    /// What identifies the source, beyond what the manifest says of it: a stopped attempt is continued only from the
    /// same.
    pub origin: String,
    /// Bytes that will be needed beside the bundle while it is made.
    pub scratch_bytes: u64,
}

/// A folder that is ready to be written.
#[derive(Debug)]
pub struct Claim {
    pub(crate) draft: Draft,
    pub(crate) folder: Folder,
    pub(crate) kept: Kept,
    /// MD5 of shards that an earlier attempt wrote whole.
    md5: BTreeMap<usize, String>,
    damaged: Vec<String>,
}

/// Parts of shards that are there already: chunk hashes by shard and part.
pub(crate) type Kept = BTreeMap<(usize, usize), Vec<String>>;

impl Draft {
    /// Whether [`Draft::claim`] would be refused for what is in the folder; changes nothing.
    pub fn check_folder(path: &Path, occupied: Occupied) -> Result<(), PackError> {
        Folder::check(path, occupied)
    }

    /// Takes a folder for this bundle: no other process can, until it is written or this one ends.
    ///
    /// What a stopped attempt has left is hashed again; what is not what it was goes.
    pub fn claim(self, path: &Path, options: ClaimOptions) -> Result<Claim, PackError> {
        let (folder, past) = Folder::open(path, options.occupied)?;
        let md5 = past.md5.clone();
        match self.prepare(&folder, past, options) {
            Ok((kept, damaged)) => Ok(Claim { draft: self, folder, kept, md5, damaged }),
            Err(error) => {
                folder.leave()?;
                Err(error)
            }
        }
    }

    /// Looks at what is there and whether there is room, and only then removes what has to go.
    fn prepare(
        &self,
        folder: &Folder,
        past: Past,
        options: ClaimOptions,
    ) -> Result<(Kept, Vec<String>), PackError> {
        let mut recipe: Recipe =
            self.recipe().into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        recipe.insert("source".into(), options.origin);
        let mut clearing = folder.clearing(past, options.occupied, &recipe)?;
        folder.refuse_foreign(&clearing, self.paths())?;
        let (kept, damaged) = kept(self, folder, std::mem::take(&mut clearing.kept))?;
        let kept_bytes: u64 = kept.keys().map(|&(shard, part)| self.part_bytes(shard, part)).sum();
        let needed = self.bytes().saturating_sub(kept_bytes).saturating_add(options.scratch_bytes);
        let free = folder.available(&clearing)?;
        if needed > free {
            return Err(PackError::NoSpace { folder: folder.path().into(), needed, free });
        }
        folder.clear(&clearing, &recipe)?;
        Ok((kept, damaged))
    }

    fn part_bytes(&self, shard: usize, part: usize) -> u64 {
        self.ranges(shard).nth(part).map_or(0, |range| range.end - range.start)
    }
}

impl Claim {
    /// Files that a stopped attempt has left whole.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Their bytes.
    pub fn kept_bytes(&self) -> u64 {
        self.kept.keys().map(|&(shard, part)| self.draft.part_bytes(shard, part)).sum()
    }

    /// Files that it had written and that have changed since; they are made again.
    pub fn damaged(&self) -> &[String] {
        &self.damaged
    }

    /// Which records have bytes that are not there yet, by index.
    pub fn wanted(&self, shards: &[ShardPlan]) -> Vec<bool> {
        let mut wanted = vec![false; shards.iter().map(|shard| shard.records.len()).sum()];
        for (i, shard) in shards.iter().enumerate() {
            for (part, range) in self.draft.ranges(i).enumerate() {
                if self.kept.contains_key(&(i, part)) {
                    continue;
                }
                let ends = shard.records.iter().skip(1).map(|(_, start)| *start);
                for (&(record, start), end) in shard.records.iter().zip(ends.chain([shard.bytes])) {
                    wanted[record] |= start < range.end && end > range.start;
                }
            }
        }
        wanted
    }

    /// The MD5 of a shard that is there, if it was noted.
    pub(crate) fn noted_md5(&self, shard: usize) -> Option<&String> {
        self.md5.get(&shard).filter(|_| self.has(shard))
    }

    /// Whether all of a shard is there.
    pub(crate) fn has(&self, shard: usize) -> bool {
        (0..self.draft.ranges(shard).len()).all(|part| self.kept.contains_key(&(shard, part)))
    }
}

/// What of the files of a stopped attempt is there and what it was; the others are removed.
fn kept(
    draft: &Draft,
    folder: &Folder,
    written: Vec<Entry>,
) -> Result<(Kept, Vec<String>), PackError> {
    let fits = |entry: &Entry| {
        let (shard, part) = entry.part?;
        let range = (shard < draft.shards()).then(|| draft.ranges(shard).nth(part)).flatten()?;
        let named = draft.path(shard, part, &entry.sha256) == entry.path;
        named.then_some(range.end - range.start)
    };
    // A part that was made again is there twice; the last word counts.
    let written: BTreeMap<String, Entry> =
        written.into_iter().map(|entry| (entry.path.clone(), entry)).collect();
    let checked = written.into_par_iter().map(|(_, entry)| {
        let Some(bytes) = fits(&entry) else { return Ok((entry, None)) };
        let whole = holds(&folder.path().join(&entry.path), bytes, &entry.sha256)?;
        Ok((entry, Some(whole)))
    });
    let checked: Vec<(Entry, Option<Option<bool>>)> = checked.collect::<Result<_, PackError>>()?;
    let (mut kept, mut damaged) = (Kept::new(), Vec::new());
    for (entry, whole) in checked {
        match (entry.part, whole) {
            (Some(part), Some(Some(true))) => {
                kept.insert(part, entry.sha256);
            }
            // Announced, but stopped before it got its name.
            (_, Some(None)) => {}
            (_, Some(Some(_))) => {
                folder.remove(&entry.path)?;
                damaged.push(entry.path);
            }
            // A small file: it is written anew in no time.
            (_, None) => folder.remove(&entry.path)?,
        }
    }
    Ok((kept, damaged))
}

/// Whether a file has that size and these chunk hashes; `None` where there is no file.
fn holds(path: &Path, bytes: u64, sha256: &[String]) -> Result<Option<bool>, PackError> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if file.metadata()?.len() != bytes {
        return Ok(Some(false));
    }
    let (mut hasher, mut buffer) = (ChunkHasher::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            n => hasher.update(&buffer[..n]),
        }
    }
    Ok(Some(hasher.finish() == sha256))
}
