//! A bundle as the runner reads it: manifests first, then every shard once, chunk by verified chunk.

mod mlc;

use std::collections::BTreeMap;
use std::sync::Arc;

use packlight_formats::chat_config::CHAT_CONFIG;
use packlight_formats::config::ConfigError;
use packlight_formats::digest::sha256;
use packlight_formats::manifest::ManifestError;
use packlight_formats::manifest::packlight::{File, PACKLIGHT, Packlight};
use packlight_formats::manifest::tensor_cache::{Shard, ShardRecord, TENSOR_CACHE, TensorCache};
use packlight_formats::model::Model;
use packlight_formats::quant::{Assignment, SCHEMES};

use crate::executor::WeightSink;
use crate::plan::Plan;
use crate::source::{Source, SourceError};
use crate::tables::{HostTables, Place};

/// The longest piece that is handed on.
const PIECE_BYTES: usize = 8 << 20;

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
            Self::Describe(error) => return error.hint(),
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

    /// The same of a shard, naming the record that is cut off where the file is.
    fn naming_record(self, shard: &Shard) -> Self {
        let Self::Source(SourceError::Truncated { path, found, .. }) = self else { return self };
        let mut records = shard.records.iter();
        let record = records.find(|record| record.byte_offset + record.nbytes > found);
        let record = record.map_or_else(String::new, |record| record.name.clone());
        Self::CutOff { record, file: path, found, expected: shard.nbytes }
    }
}

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
    source: Arc<S>,
    trust: Trust,
    description: Description,
    sha256: String,
    assignment: Assignment,
    shards: Vec<Shard>,
}

/// What says which model a bundle holds.
#[derive(Debug)]
enum Description {
    /// Its own manifest.
    Packlight(Box<Packlight>),
    /// The chat configuration of a plain MLC bundle, and what there is to note about it.
    Mlc { model: Box<Model>, notes: Vec<String> },
}

impl<S: Source> Bundle<S> {
    /// Reads both manifests; of a plain MLC bundle its one manifest and its chat configuration.
    pub async fn open(source: S, trust: Trust) -> Result<Self, BundleError> {
        let Some(json) = source.file(PACKLIGHT).await? else {
            return Self::open_mlc(source, trust).await;
        };
        let manifest = Packlight::parse(&json)?;
        let assignment = manifest.assignment()?;
        let (sha256, shards) = (sha256(&json), Vec::new());
        let description = Description::Packlight(Box::new(manifest));
        let source = Arc::new(source);
        let mut bundle = Self { source, trust, description, sha256, assignment, shards };
        let cache = bundle
            .file(TENSOR_CACHE)
            .await?
            .ok_or_else(|| BundleError::Missing(TENSOR_CACHE.into()))?;
        bundle.shards = TensorCache::parse(&cache)?.records;
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
            self.assignment.keep_native(native.name);
        }
        for shard in &self.shards {
            let Some(manifest) = self.manifest() else { break };
            if manifest.file(&shard.data_path).is_none_or(|file| file.bytes != shard.nbytes) {
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
            for needed in self.assignment.storage(weight).records() {
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
        match &self.description {
            Description::Packlight(manifest) => &manifest.model,
            Description::Mlc { model, .. } => model,
        }
    }

    /// How its weights are stored.
    pub fn assignment(&self) -> &Assignment {
        &self.assignment
    }

    /// Its own manifest; a plain MLC bundle has none.
    pub fn manifest(&self) -> Option<&Packlight> {
        match &self.description {
            Description::Packlight(manifest) => Some(manifest),
            Description::Mlc { .. } => None,
        }
    }

    /// What its user should know: how a plain MLC bundle was understood.
    pub fn notes(&self) -> &[String] {
        match &self.description {
            Description::Packlight(_) => &[],
            Description::Mlc { notes, .. } => notes,
        }
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
    pub async fn file(&self, path: &str) -> Result<Option<Vec<u8>>, BundleError> {
        let Some(manifest) = self.manifest() else { return Ok(self.source.file(path).await?) };
        let Some(file) = manifest.file(path) else { return Ok(None) };
        let mut bytes = Vec::new();
        for i in 0..file.sha256.len() {
            bytes.extend(self.chunk(manifest, file, i).await?);
        }
        Ok(Some(bytes))
    }

    /// The tables that a plan looks up on the host. [`Bundle::load`] verifies them in passing.
    pub fn host_tables(&self, plan: &Plan) -> Result<HostTables, BundleError> {
        let find = |name: &str| {
            let in_shard = |shard: &Shard| {
                let record = shard.records.iter().find(|record| record.name == name)?;
                let bytes = record.byte_offset..record.byte_offset + record.nbytes;
                Some(Place { file: shard.data_path.clone(), bytes })
            };
            let place = self.shards.iter().find_map(in_shard);
            place.ok_or_else(|| BundleError::Missing(name.into()))
        };
        HostTables::of(plan, Arc::<S>::clone(&self.source), find)
    }

    /// Streams every record into `sink`; `progress` is told the bytes of each chunk.
    pub async fn load<W, E>(&self, sink: &mut W, mut progress: impl FnMut(u64)) -> Result<(), E>
    where
        W: WeightSink,
        E: From<BundleError> + From<W::Error>,
    {
        let paths: Vec<&str> = self.shards.iter().map(|shard| shard.data_path.as_str()).collect();
        self.source.announce(&paths);
        for shard in &self.shards {
            let Some(manifest) = self.manifest() else {
                self.load_mlc::<W, E>(shard, sink, &mut progress).await?;
                continue;
            };
            let Some(file) = manifest.file(&shard.data_path) else { continue };
            let mut cutter = Cutter::new(shard);
            for i in 0..file.sha256.len() {
                let bytes = self.chunk(manifest, file, i).await;
                let bytes = bytes.map_err(|error| error.naming_record(shard))?;
                cutter.push(&bytes, sink)?;
                progress(bytes.len() as u64);
            }
        }
        Ok(())
    }

    /// One chunk of a file, verified unless told not to.
    async fn chunk(
        &self,
        manifest: &Packlight,
        file: &File,
        chunk: usize,
    ) -> Result<Vec<u8>, BundleError> {
        let path = &file.path;
        let Some((range, expected)) = file.chunks(manifest.chunk_bytes).nth(chunk) else {
            return Ok(Vec::new());
        };
        let (start, end) = (range.start, range.end);
        let bytes = self.source.range(path, range).await.map_err(BundleError::unreadable)?;
        if self.trust == Trust::Nothing && sha256(&bytes) != expected {
            return Err(BundleError::WrongChunk { file: path.clone(), chunk, start, end });
        }
        Ok(bytes)
    }
}

/// Cuts the chunks of a shard into pieces of its records.
struct Cutter<'a> {
    shard: &'a Shard,
    /// Position in the shard.
    at: u64,
    /// The record being filled.
    record: usize,
    /// Bytes of it that were handed on.
    done: u64,
    /// Bytes of it that were not: fewer than four between pushes.
    held: Vec<u8>,
}

impl<'a> Cutter<'a> {
    fn new(shard: &'a Shard) -> Self {
        Self { shard, at: 0, record: 0, done: 0, held: Vec::new() }
    }

    fn push<W: WeightSink>(&mut self, mut bytes: &[u8], sink: &mut W) -> Result<(), W::Error> {
        while let Some(record) = self.shard.records.get(self.record) {
            // Records may have gaps between them, but never overlap.
            let received = self.done + self.held.len() as u64;
            let gap = (record.byte_offset + received).saturating_sub(self.at);
            let skip = usize::try_from(gap).unwrap_or(usize::MAX).min(bytes.len());
            bytes = &bytes[skip..];
            self.at += skip as u64;
            let wanted =
                usize::try_from(record.nbytes - received).unwrap_or(usize::MAX).min(bytes.len());
            self.held.extend_from_slice(&bytes[..wanted]);
            bytes = &bytes[wanted..];
            self.at += wanted as u64;

            let complete = received + wanted as u64 == record.nbytes;
            let ready = if complete { self.held.len() } else { self.held.len() / 4 * 4 };
            for piece in self.held[..ready].chunks(PIECE_BYTES) {
                sink.write(&record.spec(), self.done, piece)?;
                self.done += piece.len() as u64;
            }
            self.held.drain(..ready);
            if !complete {
                break;
            }
            self.record += 1;
            self.done = 0;
        }
        // What follows the last record belongs to none.
        self.at += bytes.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Folder;
    use packlight_formats::manifest::tensor_cache::ShardRecord;
    use packlight_formats::{Dtype, RecordSpec};

    #[derive(Default)]
    struct Collect(BTreeMap<String, Vec<u8>>);

    impl WeightSink for Collect {
        type Error = BundleError;

        fn write(
            &mut self,
            record: &RecordSpec,
            offset: u64,
            bytes: &[u8],
        ) -> Result<(), BundleError> {
            let held = self.0.entry(record.name.clone()).or_default();
            assert_eq!(held.len() as u64, offset);
            assert_eq!(offset % 4, 0);
            held.extend_from_slice(bytes);
            Ok(())
        }
    }

    /// Whatever the chunk size, each record gets its own bytes, in pieces at multiples of four, gaps left out.
    #[test]
    fn cuts_records_at_any_chunk_size() {
        let record = |name: &str, halves: u64, offset| {
            ShardRecord::new(&RecordSpec::new(name, Dtype::Float16, [halves]), offset)
        };
        let records = vec![record("a", 5, 0), record("b", 1, 10), record("c", 9, 16)];
        let shard = Shard {
            data_path: "s".into(),
            format: String::new(),
            nbytes: 40,
            records,
            md5: String::new(),
        };
        let bytes: Vec<u8> = (0..40).collect();
        for size in 1..=40 {
            let (mut cutter, mut sink) = (Cutter::new(&shard), Collect::default());
            for chunk in bytes.chunks(size) {
                cutter.push(chunk, &mut sink).expect("collects");
            }
            assert_eq!(sink.0["a"], bytes[0..10], "chunks of {size}");
            assert_eq!(sink.0["b"], bytes[10..12], "chunks of {size}");
            assert_eq!(sink.0["c"], bytes[16..34], "chunks of {size}");
        }
    }

    #[test]
    fn an_empty_folder_is_no_bundle() {
        let opened = pollster::block_on(Bundle::open(Folder::new("/nonexistent"), Trust::Nothing));
        assert!(matches!(opened, Err(BundleError::NotABundle)));
    }
}
