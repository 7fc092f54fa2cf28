//! A bundle as MLC-LLM wrote it: the model comes from `mlc-chat-config.json`, and where there is no `packlight.json` at
//! all, shards have an MD5 sum each instead of hashed chunks.

use md5::{Digest as _, Md5};
use packlight_formats::chat_config::{CHAT_CONFIG, ChatConfig};
use packlight_formats::digest::hex;
use packlight_formats::manifest::packlight::CHUNK_BYTES;
use packlight_formats::manifest::tensor_cache::Shard;
use packlight_formats::quant::{Assignment, Scheme};

use super::{BundleError, Cutter, Description, Files, Trust};
use crate::executor::WeightSink;
use crate::source::Source;

impl<S: Source> Files<S> {
    /// What the chat configuration says of the model, whose records are in these shards.
    pub(super) async fn describe(&self, shards: &[Shard]) -> Result<Description, BundleError> {
        let config = self.read(CHAT_CONFIG).await?.ok_or(BundleError::NoChatConfig)?;
        let config: ChatConfig = serde_json::from_slice(&config)
            .map_err(|error| BundleError::ChatConfig(error.to_string()))?;
        let scheme = Scheme::find(&config.quantization)
            .ok_or_else(|| BundleError::UnknownScheme(config.quantization.clone()))?;
        let records = shards.iter().flat_map(|shard| &shard.records);
        let described = config.describe(|name| records.clone().any(|record| record.name == name));
        let (model, assumed) = described?;
        let mut notes = vec![format!(
            "a plain MLC bundle: {CHAT_CONFIG} says that it is `{}` under `{}`",
            config.model_type, config.quantization
        )];
        notes.extend(assumed);
        Ok(Description { model, assignment: Assignment::uniform(scheme), notes })
    }

    /// Streams the records of one shard, whose MD5 sum is known to be right only at its end.
    pub(super) async fn load_mlc<W, E>(
        &self,
        shard: &Shard,
        sink: &mut W,
        mut progress: impl FnMut(u64),
    ) -> Result<(), E>
    where
        W: WeightSink,
        E: From<BundleError> + From<W::Error>,
    {
        let path = &shard.data_path;
        let (mut cutter, mut md5) = (Cutter::new(shard), Md5::new());
        let mut start = 0;
        while start < shard.nbytes {
            let end = (start + CHUNK_BYTES).min(shard.nbytes);
            let bytes = self.source.range(path, start..end).await;
            let bytes = bytes.map_err(|error| {
                BundleError::unreadable(error).naming_record(shard, 0, shard.nbytes)
            })?;
            if self.trust == Trust::Nothing {
                md5.update(&bytes);
            }
            cutter.push(&bytes, sink)?;
            sink.settle().await?;
            progress(end - start);
            start = end;
        }
        if self.trust == Trust::Nothing && hex(&md5.finalize()) != shard.md5 {
            return Err(BundleError::WrongMd5 { file: path.clone() }.into());
        }
        Ok(())
    }
}
