//! `packlight.json`: what is in a bundle, byte by byte, where it came from, and the model it holds.
//!
//! `docs/packlight-json.md` describes it field by field.

use serde::{Deserialize, Serialize};

use super::ManifestError;
use super::files::File;
use super::names::Names;
use super::requires::Requires;
use crate::model::Model;
use crate::quant::{Assignment, Rounding, Scheme};

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
#[serde(into = "Wire", try_from = "Wire")]
pub struct Packlight {
    /// What wrote the bundle.
    pub generator: Generator,
    /// How the weights were made; `None` where that is not known, as of a bundle that MLC-LLM converted.
    pub about: Option<About>,
    /// Size of a hashed chunk; a file's last chunk is shorter.
    pub chunk_bytes: u64,
    /// How files are named.
    pub names: Names,
    /// The limit that the bundle was cut to: no file is larger.
    pub max_file_bytes: Option<u64>,
    /// JSON files of the bundle that were written without white space to fit the limit; indented by two spaces they
    /// are again what they were.
    pub compacted: Vec<String>,
    /// Every file on the host but this one.
    pub files: Vec<File>,
}

/// What only the converter knows of a bundle.
#[derive(Clone, Debug, PartialEq)]
pub struct About {
    /// Name of the quantisation scheme of all weights that `overrides` does not name.
    pub scheme: String,
    /// Weights under other schemes; a later entry wins.
    pub overrides: Vec<Override>,
    /// Name of the code chooser.
    pub codes: String,
    /// How the chooser rounds, where it is one that is told.
    pub rounding: Option<Rounding>,
    /// SHA-256 of the text that the chooser was calibrated with, where it is one that needs some.
    pub calibration_sha256: Option<String>,
    /// Where the weights came from.
    pub source: Provenance,
    /// What a device needs.
    pub requires: Requires,
    /// The complete description, from which the runner works.
    pub model: Model,
}

/// Weights that are stored under another scheme.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Generator {
    /// `packlight`.
    pub name: String,
    /// Semantic version.
    pub version: String,
}

/// The checkpoint, identified without its path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// Tensors in its files.
    pub tensors: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// SHA-256 of config.json.
    pub config_sha256: String,
    /// Keys of it that the converter was told to leave unread, by their dotted paths; nothing knows what they mean.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignored_config_keys: Vec<String>,
    /// Its weight files.
    pub files: Vec<SourceFile>,
}

/// A weight file of the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SourceFile {
    /// File name.
    pub path: String,
    /// Size of the file.
    pub bytes: u64,
    /// SHA-256 of its safetensors header, size field included.
    pub header_sha256: String,
}

/// The file as it is spelled: flat, what is known of the conversion beside the rest.
#[derive(Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "packlight.json"))]
#[serde(deny_unknown_fields)]
pub(super) struct Wire {
    /// Version of this format: 1.
    schema_version: u32,
    /// What wrote the bundle.
    generator: Generator,
    /// Name of the quantisation scheme of all weights that `overrides` does not name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scheme: Option<String>,
    /// Weights under other schemes; a later entry wins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    overrides: Option<Vec<Override>>,
    /// Name of the code chooser.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    codes: Option<String>,
    /// How the chooser rounds, where it is one that is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rounding: Option<Rounding>,
    /// SHA-256 of the text that the chooser was calibrated with, where it is one that needs some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    calibration_sha256: Option<String>,
    /// Where the weights came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    source: Option<Provenance>,
    /// What a device needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    requires: Option<Requires>,
    /// Size of a hashed chunk; a file's last chunk is shorter.
    chunk_bytes: u64,
    /// How files are named.
    #[serde(default, skip_serializing_if = "Names::is_plain")]
    names: Names,
    /// The limit that the bundle was cut to: no file is larger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_file_bytes: Option<u64>,
    /// JSON files of the bundle that were written without white space to fit the limit; indented by two spaces they
    /// are again what they were.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    compacted: Vec<String>,
    /// Every file on the host but this one.
    files: Vec<File>,
    /// The complete description, from which the runner works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    model: Option<Model>,
}

impl From<Packlight> for Wire {
    fn from(manifest: Packlight) -> Self {
        let Packlight { generator, about, chunk_bytes, names, max_file_bytes, compacted, files } =
            manifest;
        let mut wire = Self {
            schema_version: SCHEMA_VERSION,
            generator,
            scheme: None,
            overrides: None,
            codes: None,
            rounding: None,
            calibration_sha256: None,
            source: None,
            requires: None,
            chunk_bytes,
            names,
            max_file_bytes,
            compacted,
            files,
            model: None,
        };
        if let Some(about) = about {
            wire.scheme = Some(about.scheme);
            wire.overrides = Some(about.overrides);
            wire.codes = Some(about.codes);
            wire.rounding = about.rounding;
            wire.calibration_sha256 = about.calibration_sha256;
            wire.source = Some(about.source);
            wire.requires = Some(about.requires);
            wire.model = Some(about.model);
        }
        wire
    }
}

impl TryFrom<Wire> for Packlight {
    type Error = String;

    fn try_from(wire: Wire) -> Result<Self, String> {
        let Wire { scheme, overrides, codes, rounding, calibration_sha256, .. } = wire;
        let about = match (scheme, overrides, codes, wire.source, wire.requires, wire.model) {
            (
                Some(scheme),
                Some(overrides),
                Some(codes),
                Some(source),
                Some(requires),
                Some(model),
            ) => Some(About {
                scheme,
                overrides,
                codes,
                rounding,
                calibration_sha256,
                source,
                requires,
                model,
            }),
            (None, None, None, None, None, None)
                if rounding.is_none() && calibration_sha256.is_none() =>
            {
                None
            }
            _ => {
                return Err(
                    "scheme, overrides, codes, source, requires and model belong together: \
                     all of them or none"
                        .into(),
                );
            }
        };
        Ok(Self {
            generator: wire.generator,
            about,
            chunk_bytes: wire.chunk_bytes,
            names: wire.names,
            max_file_bytes: wire.max_file_bytes,
            compacted: wire.compacted,
            files: wire.files,
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

    fn validate(&self) -> Result<(), ManifestError> {
        if !(1..=MAX_CHUNK_BYTES).contains(&self.chunk_bytes) {
            return Err(fault(format!(
                "chunk_bytes is {}; a client must hold a chunk, so at most {MAX_CHUNK_BYTES}",
                self.chunk_bytes
            )));
        }
        if let Some(about) = &self.about {
            about.model.validate().map_err(|error| fault(format!("model: {error}")))?;
        }
        self.file_faults().into_iter().next().map_or(Ok(()), |reason| Err(fault(reason)))
    }
}

impl About {
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
}

fn fault(reason: String) -> ManifestError {
    ManifestError { file: PACKLIGHT, reason }
}
