//! The output folder: claimed before writing, and every file in it whole or absent.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use packlight_formats::chat_config::CHAT_CONFIG;
use packlight_formats::manifest::packlight::PACKLIGHT;
use packlight_formats::manifest::tensor_cache::{
    NDARRAY_CACHE, NDARRAY_CACHE_B16, TENSOR_CACHE, TENSOR_CACHE_B16,
};
use serde_json::Value;
use tempfile::NamedTempFile;

use crate::error::PackError;
use crate::journal::{Entry, JOURNAL, Journal, Past, Recipe};

/// Temporary files are called this and some random letters.
const TEMPORARY: &str = ".packlight-tmp-";
/// What readers begin with.
const MANIFESTS: [&str; 3] = [PACKLIGHT, TENSOR_CACHE, NDARRAY_CACHE];

/// What to do about files that are already there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occupied {
    /// Refuse, except over what was begun in the same way and not finished: that is continued.
    Refuse,
    /// Remove a bundle that is there, finished or not, and nothing else; refuse to write over other files.
    Replace,
}

/// What is to happen to the files of a folder before a bundle is written there.
#[derive(Debug)]
pub(crate) struct Clearing {
    goes: BTreeSet<String>,
    /// What a stopped process has left that is continued.
    pub(crate) kept: Vec<Entry>,
    /// Whether it is a bundle from its beginning.
    begins: bool,
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
        match names.into_iter().find(|name| is_foreign(name)) {
            Some(found) if occupied == Occupied::Refuse && !begun => {
                Err(PackError::NotEmpty { folder: path.into(), found })
            }
            _ => Ok(()),
        }
    }

    /// Creates the folder if need be and locks it. The second value is what a stopped process says that it wrote there;
    /// nothing in it is checked.
    pub(crate) fn open(path: &Path, occupied: Occupied) -> Result<(Self, Past), PackError> {
        Self::check(path, occupied)?;
        fs_err::create_dir_all(path)?;
        let (journal, past) = Journal::open(path)?;
        Ok((Self { path: path.into(), journal }, past))
    }

    /// What has to go and what stays where `recipe` is to be followed; changes nothing.
    pub(crate) fn clearing(
        &self,
        past: Past,
        occupied: Occupied,
        recipe: &Recipe,
    ) -> Result<Clearing, PackError> {
        let names = names(&self.path)?;
        let mut goes: BTreeSet<String> = past.stale.iter().cloned().collect();
        let (kept, begins) = match &past.recipe {
            // Nothing is lost by beginning anew where nothing was written.
            Some(begun) if occupied == Occupied::Refuse && !past.files.is_empty() => {
                let differences = differences(begun, recipe);
                if !differences.is_empty() {
                    return Err(PackError::OtherOptions { folder: self.path.clone(), differences });
                }
                (past.files, false)
            }
            // A journal that says nothing gives leave for nothing.
            None if occupied == Occupied::Refuse
                && let Some(found) = names.iter().find(|name| is_foreign(name)) =>
            {
                let (folder, found) = (self.path.clone(), found.clone());
                return Err(PackError::NotEmpty { folder, found });
            }
            _ => {
                goes.extend(past.files.into_iter().map(|entry| entry.path));
                goes.extend(self.earlier_bundle()?);
                (Vec::new(), true)
            }
        };
        goes.extend(MANIFESTS.map(str::to_owned));
        goes.extend(names.into_iter().filter(|name| is_temporary(name) || is_shard(name)));
        for entry in &kept {
            goes.remove(&entry.path);
        }
        Ok(Clearing { goes, kept, begins })
    }

    /// Refuses to write over files that no bundle here has.
    pub(crate) fn refuse_foreign<'a>(
        &self,
        clearing: &Clearing,
        written: impl Iterator<Item = &'a str>,
    ) -> Result<(), PackError> {
        let is_ours = |name: &str| {
            clearing.goes.contains(name) || clearing.kept.iter().any(|file| file.path == name)
        };
        let foreign = written.filter(|name| !is_ours(name) && self.path.join(name).is_file());
        let files: Vec<String> = foreign.map(str::to_owned).collect();
        if files.is_empty() {
            return Ok(());
        }
        Err(PackError::Foreign { folder: self.path.clone(), files })
    }

    /// Bytes that there will be room for.
    pub(crate) fn available(&self, clearing: &Clearing) -> Result<u64, PackError> {
        let sizes = clearing.goes.iter().filter_map(|name| {
            fs_err::symlink_metadata(self.path.join(name)).ok().map(|file| file.len())
        });
        let free = fs4::available_space(&self.path)?;
        Ok(free.saturating_add(sizes.sum()))
    }

    /// Removes what has to go. Manifests go first, so that a reader never sees an old one beside new shards.
    pub(crate) fn clear(&self, clearing: &Clearing, recipe: &Recipe) -> Result<(), PackError> {
        if clearing.begins {
            self.journal.restart(recipe, clearing.goes.iter().cloned().collect())?;
        }
        for name in MANIFESTS.into_iter().chain(clearing.goes.iter().map(String::as_str)) {
            self.remove(name)?;
        }
        Ok(())
    }

    /// Leaves the folder as it was, where nothing was begun.
    pub(crate) fn leave(self) -> Result<(), PackError> {
        self.journal.remove_if_empty()
    }

    /// The files of a bundle that is there.
    fn earlier_bundle(&self) -> Result<Vec<String>, PackError> {
        // Of any version, and damaged or not: what is needed is names, and only they are read.
        let manifest = self.json(PACKLIGHT)?;
        let listed = manifest["files"].as_array().into_iter().flatten().map(|file| &file["path"]);
        let chat_config = self.json(CHAT_CONFIG)?;
        let tokenizer = chat_config["tokenizer_files"].as_array().into_iter().flatten();
        let named = listed.chain(tokenizer).filter_map(Value::as_str);
        // Without a manifest, what only a bundle has.
        let own = [CHAT_CONFIG, TENSOR_CACHE_B16, NDARRAY_CACHE_B16];
        Ok(named.chain(own).map(str::to_owned).collect())
    }

    /// A JSON file, null where there is none or it is broken.
    fn json(&self, name: &str) -> Result<Value, PackError> {
        match fs_err::read(self.path.join(name)) {
            Ok(json) => Ok(serde_json::from_slice(&json).unwrap_or_default()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Value::Null),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A file that has no name yet.
    pub(crate) fn temporary(&self) -> Result<NamedTempFile, PackError> {
        let created = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(&self.path);
        created.map_err(|source| PackError::Create { folder: self.path.clone(), source })
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

/// Whether a name is neither the journal's nor of a file that never got one.
fn is_foreign(name: &str) -> bool {
    name != JOURNAL && !is_temporary(name)
}

fn is_temporary(name: &str) -> bool {
    name.starts_with(TEMPORARY)
}

/// A name that only a bundle has.
fn is_shard(name: &str) -> bool {
    name.strip_prefix("params_shard_").is_some_and(|rest| rest.contains(".bin"))
}
