//! What a client needs to run a bundle: computed from the description, never kept by hand.

use serde::{Deserialize, Serialize};

use crate::model::{CHUNK, Mixer, Model, cache_positions};
use crate::quant::Assignment;
use crate::record::RecordSpec;

/// Context length that [`Requires::device_bytes`] is given for, unless the model's own is shorter.
const USUAL_CONTEXT: u32 = 4096;
/// WebGPU's default `maxStorageBufferBindingSize`: larger weights are cut into row pieces of at most this.
const DEFAULT_BINDING: u64 = 128 << 20;
/// Keys, values and what short convolutions look back at are kept in f32.
const CACHE_BYTES: u64 = 4;

/// The device a bundle needs. All sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Requires {
    /// All records as they are stored.
    pub weight_bytes: u64,
    /// The largest record.
    pub largest_tensor: String,
    /// Its size: the storage buffer binding needed by a client that cannot cut weights.
    pub largest_tensor_bytes: u64,
    /// The binding needed by a client that cuts weights into row pieces.
    pub split_binding_bytes: u64,
    /// Growth of the KV cache per token while no window is full.
    pub kv_bytes_per_token: u64,
    /// Whether `shader-f16` is needed.
    pub shader_f16: bool,
    /// The context length that `kv_bytes` and `device_bytes` are for.
    pub context: u32,
    /// The KV cache at that length; sliding layers count to their window and the tokens of a call.
    pub kv_bytes: u64,
    /// Tables of which a token needs one row: they stay where the bundle is, and are read by range.
    pub host_bytes: u64,
    /// The other weights and the KV cache: what the device must hold, short of activations.
    pub device_bytes: u64,
}

impl Requires {
    /// Computes what a model stored under these schemes needs.
    pub fn of(model: &Model, assignment: &Assignment) -> Self {
        let storages = model.weights().into_iter().map(|weight| assignment.storage(weight));
        let records: Vec<RecordSpec> =
            storages.flat_map(|storage| storage.records().cloned().collect::<Vec<_>>()).collect();
        let weight_bytes = records.iter().map(RecordSpec::stored_bytes).sum();
        let on_host = model.per_layer_inputs.iter().map(|inputs| assignment.storage(&inputs.table));
        let host_bytes: u64 = on_host
            .map(|storage| storage.records().map(RecordSpec::stored_bytes).sum::<u64>())
            .sum();
        let largest = records.iter().max_by_key(|record| record.stored_bytes());
        let largest_tensor_bytes = largest.map_or(0, RecordSpec::stored_bytes);
        let context = model.context.min(USUAL_CONTEXT);
        let kv = |context: u32| -> u64 {
            let layers = model.layers.iter().map(|layer| &layer.mixer).enumerate();
            let bytes = layers.map(|(i, mixer)| {
                let (window, width) = match mixer {
                    Mixer::Attention(a) if a.stores_kv() => {
                        (model.cache_window(i), 2 * u64::from(a.kv_heads) * u64::from(a.head_dim))
                    }
                    Mixer::Attention(_) => return 0,
                    Mixer::ShortConv(conv) => (Some(conv.length()), model.hidden.into()),
                };
                let positions = cache_positions(window, context, CHUNK.min(context));
                width * u64::from(positions) * CACHE_BYTES
            });
            bytes.sum()
        };
        Self {
            weight_bytes,
            largest_tensor: largest.map_or_else(String::new, |record| record.name.clone()),
            largest_tensor_bytes,
            split_binding_bytes: largest_tensor_bytes.min(DEFAULT_BINDING),
            kv_bytes_per_token: kv(1),
            shader_f16: false,
            context,
            kv_bytes: kv(context),
            host_bytes,
            device_bytes: weight_bytes - host_bytes + kv(context),
        }
    }
}
