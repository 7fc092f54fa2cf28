//! The output folder: claimed before writing, and every file in it whole or absent.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use packlight_formats::manifest::packlight::PACKLIGHT;
use packlight_formats::manifest::tensor_cache::{NDARRAY_CACHE, TENSOR_CACHE};
use tempfile::NamedTempFile;

use crate::error::PackError;

/// Marks a folder whose bundle is being written. It is created first and removed last, so that what a killed
/// conversion leaves behind is recognised as ours.
const PARTIAL: &str = ".packlight-partial";
/// Temporary files are called this and some random letters.
const TEMPORARY: &str = ".packlight-tmp-";

/// What to do about files that are already there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occupied {
    /// Refuse, except over the remains of an interrupted conversion.
    Refuse,
    /// Remove a bundle that is there, and nothing else.
    Replace,
}

/// A folder claimed for writing one bundle.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Whether [`Folder::claim`] would succeed: changes nothing.
    pub fn check(path: &Path, occupied: Occupied) -> Result<(), PackError> {
        if path.is_file() {
            return Err(PackError::NotAFolder(path.into()));
        }
        let names = names(path)?;
        let ours = names.iter().any(|name| name == PARTIAL);
        match names.iter().find(|name| !is_temporary(name)) {
            Some(found) if occupied == Occupied::Refuse && !ours => {
                Err(PackError::NotEmpty { folder: path.into(), found: found.clone() })
            }
            _ => Ok(()),
        }
    }

    /// Creates the folder if need be, clears what an earlier bundle or an interrupted conversion left, and marks it.
    ///
    /// Manifests go first, so that a reader never sees an old one beside new shards.
    pub fn claim(path: &Path, occupied: Occupied) -> Result<Self, PackError> {
        Self::check(path, occupied)?;
        fs_err::create_dir_all(path)?;
        let folder = Self { path: path.into() };
        folder.write(
            PARTIAL,
            b"A conversion is writing here, or was stopped. `packlight convert` starts it again.\n",
        )?;
        for name in [PACKLIGHT, TENSOR_CACHE, NDARRAY_CACHE] {
            folder.remove(name)?;
        }
        for name in names(path)?.iter().filter(|name| is_temporary(name) || is_bundle_file(name)) {
            folder.remove(name)?;
        }
        Ok(folder)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file that has no name yet.
    pub(crate) fn temporary(&self) -> Result<NamedTempFile, PackError> {
        Ok(tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(&self.path)?)
    }

    /// Gives a finished file its name, after its bytes are on the disk.
    pub(crate) fn name(&self, file: NamedTempFile, name: &str) -> Result<(), PackError> {
        let failed = |source| PackError::Write { path: name.into(), source };
        #[cfg(unix)]
        {
            // Temporary files are private to their owner; a bundle is there to be published.
            use std::os::unix::fs::PermissionsExt as _;
            file.as_file()
                .set_permissions(std::fs::Permissions::from_mode(0o644))
                .map_err(failed)?;
        }
        file.as_file().sync_all().map_err(failed)?;
        file.persist(self.path.join(name)).map_err(|error| failed(error.error))?;
        Ok(())
    }

    /// Writes a small file whole.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), PackError> {
        let mut file = self.temporary()?;
        file.write_all(bytes).map_err(|source| PackError::Write { path: name.into(), source })?;
        self.name(file, name)
    }

    /// The bundle is whole: takes the mark away.
    pub(crate) fn finish(self) -> Result<(), PackError> {
        self.remove(PARTIAL)
    }

    fn remove(&self, name: &str) -> Result<(), PackError> {
        match fs_err::remove_file(self.path.join(name)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
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

/// Names that only a bundle has.
fn is_bundle_file(name: &str) -> bool {
    let shard = name.strip_prefix("params_shard_").is_some_and(|rest| rest.contains(".bin"));
    shard
        || matches!(
            name,
            "mlc-chat-config.json" | "tensor-cache-b16.json" | "ndarray-cache-b16.json"
        )
}
