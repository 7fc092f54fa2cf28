//! Which files of a folder are given away: those of the bundle in it, and nothing that lies beside them.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use packlight_formats::chat_config::CHAT_CONFIG;
use packlight_formats::manifest::packlight::PACKLIGHT;
use packlight_formats::manifest::tensor_cache::{
    NDARRAY_CACHE, NDARRAY_CACHE_B16, TENSOR_CACHE, TENSOR_CACHE_B16,
};
use packlight_formats::manifest::{Packlight, TensorCache};

use super::ServeError;

/// What every bundle of MLC-LLM's may have beside shards and sidecars.
const MLC: [&str; 5] =
    [TENSOR_CACHE, NDARRAY_CACHE, TENSOR_CACHE_B16, NDARRAY_CACHE_B16, CHAT_CONFIG];

/// Names of a bundle's files, as packlight.json lists them; without one, those that MLC-LLM gives: its manifests, the
/// shards that they list, and `sidecars`.
pub(super) fn listed(folder: &Path, sidecars: &[&str]) -> Result<BTreeSet<String>, ServeError> {
    let fault = |source| ServeError::Manifest { folder: folder.into(), source };
    if let Some(json) = read(folder, PACKLIGHT)? {
        let files = Packlight::parse(&json).map_err(fault)?.files.into_iter();
        return Ok(files.map(|file| file.path).chain([PACKLIGHT.into()]).collect());
    }
    let json = match read(folder, TENSOR_CACHE)? {
        None => read(folder, NDARRAY_CACHE)?,
        json => json,
    };
    let json = json.ok_or_else(|| ServeError::NoBundle(folder.into()))?;
    let shards = TensorCache::parse(&json).map_err(fault)?.records.into_iter();
    let named = MLC.iter().chain(sidecars).map(|&name| name.to_owned());
    Ok(shards.map(|shard| shard.data_path).chain(named).collect())
}

fn read(folder: &Path, manifest: &str) -> Result<Option<Vec<u8>>, ServeError> {
    match fs_err::read(folder.join(manifest)) {
        Ok(json) => Ok(Some(json)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(ServeError::Unreadable(error)),
    }
}
