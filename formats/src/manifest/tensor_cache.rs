//! `tensor-cache.json`, the manifest that WebLLM reads (schema: tvm/contrib/tvmjs.py::dump_tensor_cache).
//!
//! Until web-llm 0.2.79 the file was called `ndarray-cache.json`; a bundle carries both, with the same bytes.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::ManifestError;
use crate::dtype::Dtype;
use crate::file_name::is_file_name;
use crate::record::RecordSpec;

/// Name of the manifest.
pub const TENSOR_CACHE: &str = "tensor-cache.json";
/// Its name for clients older than web-llm 0.2.80.
pub const NDARRAY_CACHE: &str = "ndarray-cache.json";

/// The same with float32 records as the bfloat16 that they are stored in; only where there are such records.
pub const TENSOR_CACHE_B16: &str = "tensor-cache-b16.json";
/// Its name for clients older than web-llm 0.2.80.
pub const NDARRAY_CACHE_B16: &str = "ndarray-cache-b16.json";

/// The whole file. Field order is the order of the JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorCache {
    /// Totals.
    pub metadata: Metadata,
    /// The shards, by index.
    pub records: Vec<Shard>,
}

/// Totals that MLC prints after converting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Metadata {
    /// Number of records.
    pub param_size: u64,
    /// Bytes of all records in memory, as a Python float.
    pub param_bytes: f64,
    /// `ParamBytes * 8` over the parameters of the checkpoint as MLC counts them.
    pub bits_per_param: f64,
}

/// A file `params_shard_<i>.bin`: records one after another, without gaps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Shard {
    /// File name.
    pub data_path: String,
    /// Always `raw-shard`.
    pub format: String,
    /// Bytes of the file.
    pub nbytes: u64,
    /// What it holds, by offset.
    pub records: Vec<ShardRecord>,
    /// MD5 of the file in hexadecimal.
    #[serde(rename = "md5sum")]
    pub md5: String,
}

/// A record inside a shard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ShardRecord {
    /// Name of the record.
    pub name: String,
    /// Outermost dimension first.
    pub shape: Vec<u64>,
    /// Element type in memory.
    pub dtype: Dtype,
    /// `f32-to-bf16` as MLC writes it on every record, or `raw`; it has a meaning for float32 only.
    pub format: String,
    /// Bytes in the shard.
    pub nbytes: u64,
    /// Where they start.
    pub byte_offset: u64,
}

impl ShardRecord {
    /// A record as MLC describes it, at an offset.
    pub fn new(spec: &RecordSpec, byte_offset: u64) -> Self {
        Self {
            name: spec.name.clone(),
            shape: spec.shape.clone(),
            dtype: spec.dtype,
            format: "f32-to-bf16".into(),
            nbytes: spec.stored_bytes(),
            byte_offset,
        }
    }

    /// Name, types and shape. Whether a float32 record holds bfloat16 is told by its size, whatever its format says.
    pub fn spec(&self) -> RecordSpec {
        let spec = RecordSpec::new(self.name.clone(), self.dtype, self.shape.clone());
        if self.nbytes == spec.memory_bytes() { spec.native() } else { spec }
    }
}

impl TensorCache {
    /// The manifest for clients that keep bfloat16 as it is; `None` where no record would be described differently.
    pub fn b16(&self) -> Option<Self> {
        let mut cache = self.clone();
        let records = cache.records.iter_mut().flat_map(|shard| &mut shard.records);
        let mut float32 = false;
        let is_bf16 = |record: &&mut ShardRecord| {
            record.dtype == Dtype::Float32 && record.spec().stored == Dtype::Bfloat16
        };
        for record in records.filter(is_bf16) {
            record.dtype = Dtype::Bfloat16;
            record.format = "raw".into();
            float32 = true;
        }
        float32.then_some(cache)
    }

    /// Reads and validates.
    pub fn parse(json: &[u8]) -> Result<Self, ManifestError> {
        let cache: Self = serde_json::from_slice(json).map_err(|error| fault(error.to_string()))?;
        cache.validate()?;
        Ok(cache)
    }

    /// Every record lies inside its shard, none overlap, sizes follow from shapes, and names are unique.
    fn validate(&self) -> Result<(), ManifestError> {
        let (mut paths, mut names) = (BTreeSet::new(), BTreeSet::new());
        for shard in &self.records {
            let path = &shard.data_path;
            if !is_file_name(path) || !paths.insert(path) {
                return Err(fault(format!("shard path `{path}` is not a file name of its own")));
            }
            let mut free = 0;
            for record in &shard.records {
                let ShardRecord { name, nbytes, byte_offset, .. } = record;
                if !names.insert(name) {
                    return Err(fault(format!("record `{name}` stands there twice")));
                }
                if *nbytes != record.spec().stored_bytes() {
                    let ShardRecord { dtype, shape, .. } = record;
                    return Err(fault(format!(
                        "record `{name}` has {nbytes} bytes, but {dtype} {shape:?} needs another number"
                    )));
                }
                let end = byte_offset.checked_add(*nbytes).filter(|&end| end <= shard.nbytes);
                let Some(end) = end else {
                    return Err(fault(format!("record `{name}` ends beyond its shard `{path}`")));
                };
                if *byte_offset < free {
                    return Err(fault(format!(
                        "record `{name}` overlaps the one before it in `{path}`"
                    )));
                }
                free = end;
            }
        }
        Ok(())
    }
}

fn fault(reason: String) -> ManifestError {
    ManifestError { file: TENSOR_CACHE, reason }
}
