//! Writes a bundle while it is being made: shards as their records arrive, then sidecars, then the manifests.

use std::sync::Arc;

use packlight_formats::digest::sha256;
use packlight_formats::manifest::packlight::{
    self, CHUNK_BYTES, Generator, Override, PACKLIGHT, Packlight, Provenance, SCHEMA_VERSION,
};
use packlight_formats::manifest::requires::Requires;
use packlight_formats::manifest::tensor_cache::{
    Metadata, NDARRAY_CACHE, NDARRAY_CACHE_B16, Shard, ShardRecord, TENSOR_CACHE, TENSOR_CACHE_B16,
    TensorCache,
};
use packlight_formats::model::Model;
use packlight_formats::python_json;
use packlight_formats::quant::{Assignment, Rounding};
use packlight_formats::record::RecordSpec;

use crate::error::PackError;
use crate::folder::Folder;
use crate::hash::ChunkHasher;
use crate::layout::ShardPlan;
use crate::shards::{HashedShard, ShardWriter};
use crate::sidecar::Sidecar;

/// Everything about a bundle but its bytes.
#[derive(Debug)]
pub struct BundleInfo<'a> {
    pub model: &'a Model,
    pub assignment: &'a Assignment,
    pub overrides: Vec<Override>,
    pub codes: &'a str,
    /// How the chooser rounds, where it is one that is told.
    pub rounding: Option<Rounding>,
    /// SHA-256 of the text that the chooser was calibrated with, where it is one that needs some.
    pub calibration_sha256: Option<String>,
    pub provenance: Provenance,
    /// The parameter count behind MLC's `BitsPerParam`.
    pub counted_parameters: u64,
    /// In the order in which they will arrive.
    pub records: &'a [RecordSpec],
    pub shards: &'a [ShardPlan],
    pub sidecars: Vec<Sidecar>,
}

/// A finished bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    pub files: usize,
    /// All files, `packlight.json` included.
    pub bytes: u64,
    /// SHA-256 of `packlight.json`, which names every other byte.
    pub sha256: String,
}

/// Writes a bundle into a claimed folder. `produce` is handed a function that takes the pieces of record after record,
/// each record's bytes in order.
pub fn write_bundle<E: From<PackError>>(
    folder: Folder,
    info: BundleInfo<'_>,
    produce: impl FnOnce(&mut dyn FnMut(usize, Vec<u8>) -> Result<(), E>) -> Result<(), E>,
) -> Result<Written, E> {
    let folder = Arc::new(folder);
    let mut writer = ShardWriter::start(Arc::clone(&folder), info.shards);
    let produced =
        produce(&mut |record, bytes| Ok(writer.push(info.records, info.shards, record, bytes)?));
    // A failed thread closes its queue, which `produce` reports as a broken pipe: its own error says why.
    let finished = writer.finish();
    let shards = match (produced, finished) {
        (_, Err(error)) => return Err(error.into()),
        (Err(error), Ok(_)) => return Err(error),
        (Ok(()), Ok(shards)) => shards,
    };
    Ok(write_manifests(folder, info, shards)?)
}

fn write_manifests(
    folder: Arc<Folder>,
    info: BundleInfo<'_>,
    shards: Vec<HashedShard>,
) -> Result<Written, PackError> {
    let tensor_cache = tensor_cache(&info, &shards);
    let mut caches = both_names(&tensor_cache, [TENSOR_CACHE, NDARRAY_CACHE])?;
    if let Some(b16) = tensor_cache.b16() {
        caches.extend(both_names(&b16, [TENSOR_CACHE_B16, NDARRAY_CACHE_B16])?);
    }
    let mut files: Vec<packlight::File> = shards.into_iter().map(|shard| shard.file).collect();
    for Sidecar { path, bytes } in info.sidecars.into_iter().chain(caches) {
        folder.write(&path, &bytes)?;
        let mut hasher = ChunkHasher::new(CHUNK_BYTES);
        hasher.update(&bytes);
        files.push(hasher.finish(path));
    }
    let manifest = Packlight {
        schema_version: SCHEMA_VERSION,
        generator: Generator {
            name: "packlight".into(),
            version: env!("CARGO_PKG_VERSION").into(),
        },
        scheme: info.assignment.usual().name.into(),
        overrides: info.overrides,
        codes: info.codes.into(),
        rounding: info.rounding,
        calibration_sha256: info.calibration_sha256,
        source: info.provenance,
        requires: Requires::of(info.model, info.assignment),
        chunk_bytes: CHUNK_BYTES,
        files,
        model: info.model.clone(),
    };
    let json = serde_json::to_vec_pretty(&manifest).map_err(std::io::Error::other)?;
    folder.write(PACKLIGHT, &json)?;
    if let Some(folder) = Arc::into_inner(folder) {
        folder.finish()?;
    }
    let bytes = manifest.files.iter().map(|file| file.bytes).sum::<u64>() + json.len() as u64;
    Ok(Written { files: manifest.files.len() + 1, bytes, sha256: sha256(&json) })
}

/// One manifest under its new and its old name.
fn both_names(cache: &TensorCache, names: [&str; 2]) -> Result<Vec<Sidecar>, PackError> {
    let json = python_json::to_string(cache, python_json::Style::TENSOR_CACHE)
        .map_err(std::io::Error::other)?;
    Ok(names.map(|name| Sidecar { path: name.into(), bytes: json.clone().into() }).into())
}

fn tensor_cache(info: &BundleInfo<'_>, shards: &[HashedShard]) -> TensorCache {
    let param_bytes: u64 = info.records.iter().map(RecordSpec::memory_bytes).sum();
    let shard = |(plan, hashed): (&ShardPlan, &HashedShard)| Shard {
        data_path: hashed.file.path.clone(),
        format: "raw-shard".into(),
        nbytes: plan.bytes,
        records: plan
            .records
            .iter()
            .map(|&(i, offset)| ShardRecord::new(&info.records[i], offset))
            .collect(),
        md5: hashed.md5.clone(),
    };
    TensorCache {
        metadata: Metadata {
            param_size: info.records.len() as u64,
            param_bytes: param_bytes as f64,
            bits_per_param: param_bytes as f64 * 8.0 / info.counted_parameters as f64,
        },
        records: info.shards.iter().zip(shards).map(shard).collect(),
    }
}
