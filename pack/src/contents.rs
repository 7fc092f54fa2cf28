//! A bundle as its readers see it: shards, manifests and small files, before it is cut into the files of a host.

use packlight_formats::manifest::TensorCache;
use packlight_formats::manifest::packlight::About;
use packlight_formats::manifest::tensor_cache::{Metadata, Shard, ShardRecord};
use packlight_formats::record::RecordSpec;

use crate::layout::ShardPlan;
use crate::sidecar::Sidecar;

/// Everything about a bundle but the bytes of its shards.
#[derive(Clone, Debug)]
pub struct Contents {
    /// How the weights were made, where that is known.
    pub about: Option<About>,
    /// Shards under plain names. An MD5 that is not known yet is empty; one that is known is compared.
    pub tensors: TensorCache,
    /// The other files, as the checkpoint has them.
    pub sidecars: Vec<Sidecar>,
}

impl Contents {
    /// Of records that are yet to be made. `counted_parameters` are the parameters behind MLC's `BitsPerParam`.
    pub fn of_records(
        about: About,
        records: &[RecordSpec],
        shards: &[ShardPlan],
        counted_parameters: u64,
        sidecars: Vec<Sidecar>,
    ) -> Self {
        let param_bytes: u64 = records.iter().map(RecordSpec::memory_bytes).sum();
        let shard = |(i, plan): (usize, &ShardPlan)| Shard {
            data_path: shard_name(i),
            format: "raw-shard".into(),
            nbytes: plan.bytes,
            records: plan
                .records
                .iter()
                .map(|&(i, offset)| ShardRecord::new(&records[i], offset))
                .collect(),
            md5: String::new(),
        };
        let tensors = TensorCache {
            metadata: Metadata {
                param_size: records.len() as u64,
                param_bytes: param_bytes as f64,
                bits_per_param: param_bytes as f64 * 8.0 / counted_parameters as f64,
            },
            records: shards.iter().enumerate().map(shard).collect(),
        };
        Self { about: Some(about), tensors, sidecars }
    }
}

/// MLC's name of a shard.
pub(crate) fn shard_name(shard: usize) -> String {
    format!("params_shard_{shard}.bin")
}
