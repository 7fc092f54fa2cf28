//! The output folder: claimed before writing, and every file in it whole or absent.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use packlight_formats::manifest::Packlight;
use packlight_formats::manifest::packlight::PACKLIGHT;
use packlight_formats::manifest::tensor_cache::{NDARRAY_CACHE, TENSOR_CACHE};
use tempfile::NamedTempFile;

use crate::error::PackError;
use crate::journal::{Entry, JOURNAL, Journal, Past, Recipe};

/// Temporary files are called this and some random letters.
const TEMPORARY: &str = ".packlight-tmp-";

/// What to do about files that are already there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occupied {
    /// Refuse, except over what was begun in the same way and not finished: that is continued.
    Refuse,
    /// Remove a bundle that is there, finished or not, and nothing else.
    Replace,
}

/// A folder claimed for writing one bundle.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    journal: Journal,
}

impl Folder {
    /// Whether a folder may be claimed, as far as can be said without touching it.
    pub(crate) fn check(path: &Path, occupied: Occupied) -> Result<(), PackError> {
        if path.is_file() {
            return Err(PackError::NotAFolder(path.into()));
        }
        let names = names(path)?;
        let begun = names.iter().any(|name| name == JOURNAL);
        match names.into_iter().find(|name| !is_temporary(name)) {
            Some(found) if occupied == Occupied::Refuse && !begun => {
                Err(PackError::NotEmpty { folder: path.into(), found })
            }
            _ => Ok(()),
        }
    }

    /// Creates the folder if need be, locks it, and clears it of all but what a stopped process wrote by the same
    /// recipe: that is what the second value has, and nothing in it is checked.
    ///
    /// Manifests go first, so that a reader never sees an old one beside new shards.
    pub(crate) fn claim(
        path: &Path,
        occupied: Occupied,
        recipe: &Recipe,
    ) -> Result<(Self, Past), PackError> {
        Self::check(path, occupied)?;
        fs_err::create_dir_all(path)?;
        let (journal, past) = Journal::open(path)?;
        let folder = Self { path: path.into(), journal };
        let mut goes: BTreeSet<String> = past.stale.iter().cloned().collect();
        let kept = match &past.recipe {
            // Nothing is lost by beginning anew where nothing was written.
            Some(begun) if occupied == Occupied::Refuse && !past.files.is_empty() => {
                let differences = differences(begun, recipe);
                if !differences.is_empty() {
                    return Err(PackError::OtherOptions { folder: path.into(), differences });
                }
                past
            }
            _ => {
                goes.extend(past.files.into_iter().map(|entry| entry.path));
                goes.extend(folder.earlier_bundle()?);
                folder.journal.restart(recipe, goes.iter().cloned().collect())?;
                Past::default()
            }
        };
        for name in [PACKLIGHT, TENSOR_CACHE, NDARRAY_CACHE] {
            folder.remove(name)?;
        }
        goes.extend(names(path)?.into_iter().filter(|name| is_temporary(name) || is_shard(name)));
        for name in goes.difference(&kept.files.iter().map(|entry| entry.path.clone()).collect()) {
            folder.remove(name)?;
        }
        Ok((folder, kept))
    }

    /// The files of a bundle that is there.
    fn earlier_bundle(&self) -> Result<Vec<String>, PackError> {
        let manifest = match fs_err::read(self.path.join(PACKLIGHT)) {
            Ok(json) => Packlight::parse(&json).ok(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(error.into()),
        };
        let listed = manifest.into_iter().flat_map(|manifest| manifest.files);
        // Without a manifest, what only a bundle has.
        let own = ["mlc-chat-config.json", "tensor-cache-b16.json", "ndarray-cache-b16.json"];
        Ok(listed.map(|file| file.path).chain(own.map(str::to_owned)).collect())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A file that has no name yet.
    pub(crate) fn temporary(&self) -> Result<NamedTempFile, PackError> {
        let created = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(&self.path);
        created.map_err(|source| PackError::Write { path: "a temporary file".into(), source })
    }

    /// Gives a finished file its name, after its bytes are on the disk.
    pub(crate) fn name(&self, file: NamedTempFile, entry: Entry) -> Result<(), PackError> {
        let name = entry.path.clone();
        let failed = |source| PackError::Write { path: name.clone(), source };
        #[cfg(unix)]
        {
            // Temporary files are private to their owner; a bundle is there to be published.
            use std::os::unix::fs::PermissionsExt as _;
            file.as_file()
                .set_permissions(std::fs::Permissions::from_mode(0o644))
                .map_err(failed)?;
        }
        file.as_file().sync_all().map_err(failed)?;
        self.journal.announce(entry)?;
        file.persist(self.path.join(&name)).map_err(|error| failed(error.error))?;
        Ok(())
    }

    /// Notes the MD5 of a shard for whoever goes on with it.
    pub(crate) fn note_md5(&self, shard: usize, md5: String) -> Result<(), PackError> {
        self.journal.md5(shard, md5)
    }

    /// Writes a small file whole.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), PackError> {
        let mut file = self.temporary()?;
        file.write_all(bytes).map_err(|source| PackError::Write { path: name.into(), source })?;
        self.name(file, Entry { path: name.into(), part: None, sha256: Vec::new() })
    }

    /// The bundle is whole.
    pub(crate) fn finish(self) -> Result<(), PackError> {
        // Names are as durable as bytes before the journal, which could bring them back, goes.
        #[cfg(unix)]
        fs_err::File::open(&self.path)?.sync_all()?;
        self.journal.remove()
    }

    pub(crate) fn remove(&self, name: &str) -> Result<(), PackError> {
        // A journal that somebody has changed does not reach beyond the folder.
        if Path::new(name).file_name() != Some(name.as_ref()) {
            return Ok(());
        }
        match fs_err::remove_file(self.path.join(name)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

/// What was one way and is another, as a person would say it; hashes are not spelled out.
fn differences(begun: &Recipe, now: &Recipe) -> Vec<String> {
    let keys: BTreeSet<&String> = begun.keys().chain(now.keys()).collect();
    let changed = keys.into_iter().filter(|key| begun.get(*key) != now.get(*key));
    let say = |key: &String| {
        let value = |recipe: &Recipe| recipe.get(key).cloned().unwrap_or_else(|| "none".into());
        let (then, now) = (value(begun), value(now));
        let short = |text: &str| text.len() <= 24;
        if short(&then) && short(&now) {
            format!("{key}: {then} then, {now} now")
        } else {
            format!("{key}: not the same")
        }
    };
    changed.map(say).collect()
}

/// File names in a folder, sorted; none where there is no folder.
pub(crate) fn names(folder: &Path) -> std::io::Result<Vec<String>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let entries = fs_err::read_dir(folder)?;
    let mut names = entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<std::io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

fn is_temporary(name: &str) -> bool {
    name.starts_with(TEMPORARY)
}

/// A name that only a bundle has.
fn is_shard(name: &str) -> bool {
    name.strip_prefix("params_shard_").is_some_and(|rest| rest.contains(".bin"))
}
