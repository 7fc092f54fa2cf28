//! `packlight.json`: what is in a bundle, byte by byte, where it came from, and the model it holds.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::ManifestError;
use super::requires::Requires;
use crate::model::Model;
use crate::quant::{Assignment, Rounding, Scheme};
use crate::safetensors::is_file_name;

/// Name of the manifest. It is written last: a folder with it is a whole bundle.
pub const PACKLIGHT: &str = "packlight.json";
/// The one schema version this build reads and writes.
pub const SCHEMA_VERSION: u32 = 1;
/// Bytes that share a hash, unless the manifest says otherwise.
pub const CHUNK_BYTES: u64 = 8 << 20;
/// A chunk is held in memory until its hash is known.
const MAX_CHUNK_BYTES: u64 = 64 << 20;

/// The whole file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Packlight {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// What wrote the bundle.
    pub generator: Generator,
    /// Name of the quantisation scheme of all weights that `overrides` does not name.
    pub scheme: String,
    /// Weights under other schemes; a later entry wins.
    pub overrides: Vec<Override>,
    /// Name of the code chooser.
    pub codes: String,
    /// How the chooser rounds, where it is one that is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounding: Option<Rounding>,
    /// SHA-256 of the text that the chooser was calibrated with, where it is one that needs some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration_sha256: Option<String>,
    /// Where the weights came from.
    pub source: Provenance,
    /// What a device needs.
    pub requires: Requires,
    /// Size of a hashed chunk; a file's last chunk is shorter.
    pub chunk_bytes: u64,
    /// Every file of the bundle but this one, by path.
    pub files: Vec<File>,
    /// The complete description, from which the runner works.
    pub model: Model,
}

/// Weights that are stored under another scheme.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Override {
    /// The regular expression that chose them.
    pub pattern: String,
    /// Name of their scheme.
    pub scheme: String,
    /// Their names in the bundle.
    pub weights: Vec<String>,
}

/// A program and its version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Generator {
    /// `packlight`.
    pub name: String,
    /// Semantic version.
    pub version: String,
}

/// The checkpoint, identified without its path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// Tensors in its files.
    pub tensors: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// SHA-256 of config.json.
    pub config_sha256: String,
    /// Its weight files.
    pub files: Vec<SourceFile>,
}

/// A weight file of the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceFile {
    /// File name.
    pub path: String,
    /// Size of the file.
    pub bytes: u64,
    /// SHA-256 of its safetensors header, size field included.
    pub header_sha256: String,
}

/// A file of the bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// File name inside the bundle.
    pub path: String,
    /// Size of the file.
    pub bytes: u64,
    /// What a web server should call it.
    pub media_type: String,
    /// SHA-256 of each chunk. A file of one chunk has its own hash here.
    pub sha256: Vec<String>,
}

impl File {
    /// The byte ranges of its chunks.
    pub fn chunks(&self, chunk_bytes: u64) -> impl Iterator<Item = (std::ops::Range<u64>, &str)> {
        self.sha256.iter().enumerate().map(move |(i, hash)| {
            let start = i as u64 * chunk_bytes;
            (start..(start + chunk_bytes).min(self.bytes), hash.as_str())
        })
    }
}

impl Packlight {
    /// Reads and validates.
    pub fn parse(json: &[u8]) -> Result<Self, ManifestError> {
        let version = |value: &serde_json::Value| {
            value.get("schema_version").and_then(serde_json::Value::as_u64)
        };
        let value: serde_json::Value =
            serde_json::from_slice(json).map_err(|error| fault(error.to_string()))?;
        match version(&value) {
            Some(version) if version == u64::from(SCHEMA_VERSION) => {}
            found => {
                let found = found
                    .map_or_else(|| "no schema_version".into(), |v| format!("schema_version {v}"));
                return Err(fault(format!("{found}; this packlight reads {SCHEMA_VERSION}")));
            }
        }
        let manifest: Self =
            serde_json::from_value(value).map_err(|error| fault(error.to_string()))?;
        manifest.validate()?;
        Ok(manifest)
    }

    /// The scheme of every weight.
    pub fn assignment(&self) -> Result<Assignment, ManifestError> {
        let scheme = |name: &str| {
            Scheme::find(name).ok_or_else(|| fault(format!("scheme `{name}` is not known")))
        };
        let mut assignment = Assignment::uniform(scheme(&self.scheme)?);
        for Override { scheme: name, weights, .. } in &self.overrides {
            for weight in weights {
                assignment.except(weight, scheme(name)?);
            }
        }
        Ok(assignment)
    }

    /// The entry of a file.
    pub fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    fn validate(&self) -> Result<(), ManifestError> {
        if !(1..=MAX_CHUNK_BYTES).contains(&self.chunk_bytes) {
            return Err(fault(format!(
                "chunk_bytes is {}; a client must hold a chunk, so at most {MAX_CHUNK_BYTES}",
                self.chunk_bytes
            )));
        }
        self.model.validate().map_err(|error| fault(format!("model: {error}")))?;
        let mut paths = BTreeSet::new();
        for File { path, bytes, sha256, .. } in &self.files {
            if !is_file_name(path) || path == PACKLIGHT || !paths.insert(path) {
                return Err(fault(format!("`{path}` is not a file name of its own")));
            }
            let chunks = bytes.div_ceil(self.chunk_bytes).max(1);
            if sha256.len() as u64 != chunks {
                return Err(fault(format!(
                    "`{path}` of {bytes} bytes needs {chunks} chunk hashes, not {}",
                    sha256.len()
                )));
            }
            let is_hash = |hash: &String| {
                hash.len() == 64 && hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
            };
            if let Some(hash) = sha256.iter().find(|hash| !is_hash(hash)) {
                return Err(fault(format!("`{path}` has `{hash}` where a SHA-256 belongs")));
            }
        }
        Ok(())
    }
}

fn fault(reason: String) -> ManifestError {
    ManifestError { file: PACKLIGHT, reason }
}
