//! A bundle as the runner reads it: manifests first, then every shard once, chunk by verified chunk.

mod cutter;
mod files;
mod mlc;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use packlight_formats::chat_config::CHAT_CONFIG;
use packlight_formats::config::ConfigError;
use packlight_formats::digest::sha256;
use packlight_formats::manifest::packlight::{About, PACKLIGHT};
use packlight_formats::manifest::tensor_cache::{
    NDARRAY_CACHE, Shard, ShardRecord, TENSOR_CACHE, TensorCache,
};
use packlight_formats::manifest::{ManifestError, Packlight};
use packlight_formats::model::Model;
use packlight_formats::quant::{Assignment, SCHEMES};

use crate::executor::WeightSink;
use crate::plan::Plan;
use crate::source::{Source, SourceError};
use crate::tables::{HostTables, Place};
use cutter::Cutter;
pub(crate) use files::Parts;
use files::{Chunk, Files};

/// Why a bundle cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    #[error("there is no bundle: neither {PACKLIGHT} nor {TENSOR_CACHE} is there")]
    NotABundle,
    #[error("there is neither {PACKLIGHT} nor {CHAT_CONFIG} to say what model this is")]
    NoChatConfig,
    #[error("`{CHAT_CONFIG}`: {0}")]
    ChatConfig(String),
    #[error("`{CHAT_CONFIG}`: the quantisation `{0}` is not supported")]
    UnknownScheme(String),
    #[error("`{CHAT_CONFIG}`: the model cannot be described from its `model_config`: {0}")]
    Describe(#[from] ConfigError),
    #[error("`{0}` is missing")]
    Missing(String),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error("the manifests disagree: {0}")]
    Disagree(String),
    #[error(
        "`{file}` chunk {chunk} (bytes {start}..{end}) does not have the SHA-256 of the manifest"
    )]
    WrongChunk { file: String, chunk: usize, start: u64, end: u64 },
    #[error("`{file}` does not have the MD5 sum of the manifest")]
    WrongMd5 { file: String },
    #[error("record `{record}` is cut off: `{file}` ends at byte {found}, before byte {expected}")]
    CutOff { record: String, file: String, found: u64, expected: u64 },
}

impl BundleError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NotABundle => {
                "give the folder that `packlight convert -o` wrote, or its URL".into()
            }
            Self::NoChatConfig => {
                "a bundle of MLC-LLM's needs the file that `mlc_llm gen_config` writes".into()
            }
            Self::UnknownScheme(_) => {
                let names: Vec<&str> = SCHEMES.iter().map(|scheme| scheme.name).collect();
                format!("supported are {}", names.join(", "))
            }
            Self::Describe(error @ ConfigError::UnknownArchitecture { .. }) => error.hint(),
            Self::Describe(_) => {
                "convert the checkpoint that it was made from: packlight.json then has a description".into()
            }
            Self::WrongChunk { .. } | Self::WrongMd5 { .. } => {
                "the bundle is damaged: get it again, or look at it all the same with --no-verify"
                    .into()
            }
            Self::Missing(_)
            | Self::Manifest(_)
            | Self::Disagree(_)
            | Self::CutOff { .. }
            | Self::Source(SourceError::Truncated { .. }) => {
                "the bundle is damaged: `packlight verify` lists everything wrong with it".into()
            }
            Self::ChatConfig(_) | Self::Source(SourceError::Io { .. }) => {
                return None;
            }
        })
    }

    /// A file that a manifest names could not be read.
    fn unreadable(error: SourceError) -> Self {
        match error {
            SourceError::Io { path, source } if source.kind() == std::io::ErrorKind::NotFound => {
                Self::Missing(path)
            }
            error => error.into(),
        }
    }

    /// The same of a file that holds bytes of a shard from `start` on, naming the record that is cut off where the file
    /// is.
    fn naming_record(self, shard: &Shard, start: u64, expected: u64) -> Self {
        let Self::Source(SourceError::Truncated { path, found, .. }) = self else { return self };
        let mut records = shard.records.iter();
        let record = records.find(|record| record.byte_offset + record.nbytes > start + found);
        let record = record.map_or_else(String::new, |record| record.name.clone());
        Self::CutOff { record, file: path, found, expected }
    }

    /// Whether it says that a file is cut off.
    fn is_cut(&self, path: &str) -> bool {
        matches!(self, Self::Source(SourceError::Truncated { path: cut, .. }) if cut == path)
    }
}

/// The most bytes of chunks that are in memory together, if a chunk is no larger. Tabs of a browser have less to spare.
const AT_ONCE_BYTES: u64 = if cfg!(target_arch = "wasm32") { 32 << 20 } else { 128 << 20 };

/// Whether hashes are compared while reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Every byte is hashed before it is used.
    Nothing,
    /// Bytes are used as they come (`--no-verify`).
    Everything,
}

/// An open bundle: its manifests are read and agree with each other.
#[derive(Debug)]
pub struct Bundle<S> {
    files: Files<S>,
    description: Description,
    sha256: String,
    shards: Vec<Shard>,
}

/// Which model a bundle holds, and how.
#[derive(Debug)]
struct Description {
    model: Model,
    assignment: Assignment,
    /// What was assumed where the manifest does not say it.
    notes: Vec<String>,
}

impl<S: Source> Bundle<S> {
    /// Reads both manifests; where ours is not there or does not describe the model, MLC's chat configuration.
    pub async fn open(source: S, trust: Trust) -> Result<Self, BundleError> {
        let json = source.file(PACKLIGHT).await?;
        let manifest = json.as_deref().map(Packlight::parse).transpose()?;
        let files = Files { source: Arc::new(source), trust, manifest };
        let cache = match files.read(TENSOR_CACHE).await? {
            None if files.manifest.is_some() => {
                return Err(BundleError::Missing(TENSOR_CACHE.into()));
            }
            // Until TVM 0.22 MLC-LLM wrote it under its old name only.
            None => files.read(NDARRAY_CACHE).await?.ok_or(BundleError::NotABundle)?,
            Some(cache) => cache,
        };
        let shards = TensorCache::parse(&cache)?.records;
        let about = files.manifest.as_ref().and_then(|manifest| manifest.about.as_ref());
        let description = match about {
            Some(about) => Description {
                model: about.model.clone(),
                assignment: about.assignment()?,
                notes: Vec::new(),
            },
            None => files.describe(&shards).await?,
        };
        let sha256 = sha256(json.as_deref().unwrap_or(&cache));
        let mut bundle = Self { files, description, sha256, shards };
        bundle.check()?;
        Ok(bundle)
    }

    /// The shards are the manifest's files, and hold every record of the model and no other.
    fn check(&mut self) -> Result<(), BundleError> {
        let disagree = |reason: String| Err(BundleError::Disagree(reason));
        let records = self.shards.iter().flat_map(|shard| &shard.records);
        for native in
            records.map(ShardRecord::spec).filter(|spec| spec.stored != spec.dtype.stored())
        {
            self.description.assignment.keep_native(native.name);
        }
        for shard in &self.shards {
            let Some(manifest) = self.manifest() else { break };
            if manifest.size(&shard.data_path) != Some(shard.nbytes) {
                return disagree(format!(
                    "`{}` is not in {PACKLIGHT} with {} bytes",
                    shard.data_path, shard.nbytes
                ));
            }
        }
        let records = self.shards.iter().flat_map(|shard| &shard.records);
        let mut held: BTreeMap<&str, _> =
            records.map(|record| (record.name.as_str(), record.spec())).collect();
        for weight in self.model().weights() {
            for needed in self.assignment().storage(weight).records() {
                if held.remove(needed.name.as_str()).as_ref() != Some(needed) {
                    return disagree(format!(
                        "{TENSOR_CACHE} does not hold `{}` as the model needs it",
                        needed.name
                    ));
                }
            }
        }
        match held.keys().next() {
            Some(name) => {
                disagree(format!("{TENSOR_CACHE} holds `{name}`, which the model does not use"))
            }
            None => Ok(()),
        }
    }

    /// The description of its model.
    pub fn model(&self) -> &Model {
        &self.description.model
    }

    /// How its weights are stored.
    pub fn assignment(&self) -> &Assignment {
        &self.description.assignment
    }

    /// Its own manifest; a plain MLC bundle has none.
    pub fn manifest(&self) -> Option<&Packlight> {
        self.files.manifest.as_ref()
    }

    /// What only the converter knows, where the manifest has it.
    pub fn about(&self) -> Option<&About> {
        self.manifest().and_then(|manifest| manifest.about.as_ref())
    }

    /// Whether the manifest describes the model. Otherwise it was understood from MLC's chat configuration.
    pub fn is_described(&self) -> bool {
        self.about().is_some()
    }

    /// What its user should know: how a bundle that is not described was understood.
    pub fn notes(&self) -> &[String] {
        &self.description.notes
    }

    /// Bytes of all shards.
    pub fn weight_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.nbytes).sum()
    }

    /// SHA-256 of `packlight.json`, which names every other byte; of a plain MLC bundle's `tensor-cache.json`, which
    /// names the shards.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// A file beside the weights, checked against its hashes where there are any; `None` where the bundle has none of
    /// that name.
    pub async fn file(&self, name: &str) -> Result<Option<Vec<u8>>, BundleError> {
        self.files.read(name).await
    }

    /// Some bytes of a record, which are not compared with any hash; `None` where there is no record of that name.
    pub async fn record(
        &self,
        name: &str,
        range: Range<u64>,
    ) -> Result<Option<Vec<u8>>, BundleError> {
        let of_shard = |shard: &Shard| {
            let record = shard.records.iter().find(|record| record.name == name)?;
            let place = |offset: u64| record.byte_offset + offset.min(record.nbytes);
            Some((shard.data_path.clone(), place(range.start)..place(range.end)))
        };
        let Some((path, range)) = self.shards.iter().find_map(of_shard) else { return Ok(None) };
        self.files.range(&path, range).await.map(Some)
    }

    /// The tables that a plan looks up on the host. [`Bundle::load`] verifies them in passing.
    pub fn host_tables(&self, plan: &Plan) -> Result<HostTables, BundleError> {
        let find = |name: &str| {
            let in_shard = |shard: &Shard| {
                let record = shard.records.iter().find(|record| record.name == name)?;
                let bytes = record.byte_offset..record.byte_offset + record.nbytes;
                Some(Place { parts: self.files.parts(&shard.data_path), bytes })
            };
            let place = self.shards.iter().find_map(in_shard);
            place.ok_or_else(|| BundleError::Missing(name.into()))
        };
        HostTables::of(plan, Arc::<S>::clone(&self.files.source), find)
    }

    /// Streams every record into `sink`; `progress` is told the bytes of each chunk.
    pub async fn load<W, E>(&self, sink: &mut W, mut progress: impl FnMut(u64)) -> Result<(), E>
    where
        W: WeightSink,
        E: From<BundleError> + From<W::Error>,
    {
        let Files { source, manifest, .. } = &self.files;
        let names = self.shards.iter().map(|shard| shard.data_path.as_str());
        let parts: Vec<Parts> = names.map(|name| self.files.parts(name)).collect();
        let paths: Vec<&str> = parts.iter().flat_map(Parts::paths).collect();
        source.announce(&paths);
        let Some(manifest) = manifest else {
            for shard in &self.shards {
                self.files.load_mlc::<W, E>(shard, sink, &mut progress).await?;
            }
            return Ok(());
        };
        let mut chunks = Vec::new();
        for (shard, Shard { data_path, .. }) in self.shards.iter().enumerate() {
            for file in manifest.parts(data_path) {
                chunks.extend(Chunk::all(manifest, file).map(|chunk| (shard, chunk)));
            }
        }
        let mut cutters: Vec<Cutter<'_>> = self.shards.iter().map(Cutter::new).collect();
        let fit = AT_ONCE_BYTES / manifest.chunk_bytes.max(1);
        // More than all threads can read and verify need not be in memory.
        let most = fit.clamp(1, rayon::current_num_threads().max(4) as u64);
        for chunks in chunks.chunks(usize::try_from(most).unwrap_or(1)) {
            let (shards, chunks): (Vec<_>, Vec<_>) = chunks.iter().cloned().unzip();
            let read = self.files.chunks(&chunks).await.map_err(|error| {
                let mut of = shards.iter().zip(&chunks);
                let Some((&shard, Chunk { file, .. })) =
                    of.find(|(_, chunk)| error.is_cut(&chunk.file.path))
                else {
                    return error;
                };
                let start = file.holds.as_ref().map_or(0, |span| span.start);
                error.naming_record(&self.shards[shard], start, file.bytes)
            })?;
            for (shard, bytes) in shards.into_iter().zip(read) {
                cutters[shard].push(&bytes, sink)?;
                sink.settle().await?;
                progress(bytes.len() as u64);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Folder;

    #[test]
    fn an_empty_folder_is_no_bundle() {
        let opened = pollster::block_on(Bundle::open(Folder::new("/nonexistent"), Trust::Nothing));
        assert!(matches!(opened, Err(BundleError::NotABundle)));
    }
}
