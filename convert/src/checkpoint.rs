//! A Hugging Face checkpoint: config.json and one or more safetensors files, mapped, of which only headers are read.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use packlight_formats::arch;
use packlight_formats::digest::sha256;
use packlight_formats::fp8::Fp8Scales;
use packlight_formats::manifest::packlight::{Provenance, SourceFile};
use packlight_formats::model::Model;
use packlight_formats::safetensors::{TensorInfo, parse_header, parse_index};
use serde_json::Value;

use crate::error::{ConvertError, Fault};
use crate::map::Map;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// An open checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    config: Value,
    config_sha256: String,
    /// Keys of config.json that are left unread because the user says so.
    ignored_keys: Vec<String>,
    fp8_scales: Option<Fp8Scales>,
    files: Vec<WeightFile>,
    /// Where each tensor is: file, and position in its list. Of several places the first counts.
    places: HashMap<String, Vec<(usize, usize)>>,
    /// Tensor names in the order of the index, then of the bytes of files.
    order: Vec<String>,
}

/// One safetensors file.
#[derive(Debug)]
pub struct WeightFile {
    /// Its name in the folder.
    pub name: String,
    /// In the order of their bytes.
    pub tensors: Vec<TensorInfo>,
    header_bytes: usize,
    map: Map,
}

impl Checkpoint {
    /// Opens a folder: parses its config and every header, and lists whatever is wrong with the files.
    pub fn open(folder: &Path) -> Result<Self, ConvertError> {
        Self::open_ignoring(folder, &[])
    }

    /// The same with keys of config.json, by their dotted paths, of which no architecture knows what they mean.
    pub fn open_ignoring(folder: &Path, keys: &[String]) -> Result<Self, ConvertError> {
        refuse_other_kinds(folder)?;
        let config_bytes = fs_err::read(folder.join("config.json"))?;
        let config = parse_json(&folder.join("config.json"), &config_bytes)?;
        let index = read_index(folder)?;

        let mut faults = Vec::new();
        let names: BTreeSet<&str> = match &index {
            Some(index) => index.iter().map(|(_, file)| file.as_str()).collect(),
            None => BTreeSet::from([SINGLE]),
        };
        let mut files = Vec::new();
        for name in names {
            match open_file(folder, name) {
                Ok(file) => files.push(file),
                Err(Opening::Fault(fault)) => faults.push(fault),
                Err(Opening::Io(error)) => return Err(error.into()),
            }
        }
        if !faults.is_empty() {
            return Err(ConvertError::Faults(faults));
        }
        let places = places(&files, index.as_deref().unwrap_or_default());
        let order = order(index.unwrap_or_default(), &files);
        let config_sha256 = sha256(&config_bytes);
        let fp8_scales = arch::fp8_scales(&config, keys)?;
        Ok(Self {
            folder: folder.into(),
            config,
            config_sha256,
            ignored_keys: keys.to_vec(),
            fp8_scales,
            files,
            places,
            order,
        })
    }

    /// The folder it was opened from.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// config.json.
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// The model that config.json describes.
    pub(crate) fn describe(&self) -> Result<Model, ConvertError> {
        let has = |tensor: &str| self.tensor(tensor).is_some();
        Ok(arch::describe_ignoring(&self.config, &self.ignored_keys, has)?)
    }

    /// How fp8 weights are scaled, where the config says that there are any.
    pub(crate) fn fp8_scales(&self) -> Option<Fp8Scales> {
        self.fp8_scales
    }

    /// Its weight files, by name.
    pub fn files(&self) -> &[WeightFile] {
        &self.files
    }

    /// A JSON file beside the weights, `None` where there is none.
    pub fn json(&self, name: &str) -> Result<Option<Value>, ConvertError> {
        let path = self.folder.join(name);
        if !path.is_file() {
            return Ok(None);
        }
        parse_json(&path, &fs_err::read(&path)?).map(Some)
    }

    /// Tensor names in MLC's loading order.
    pub(crate) fn order(&self) -> &[String] {
        &self.order
    }

    /// A tensor and the index of its file.
    pub(crate) fn tensor(&self, name: &str) -> Option<(usize, &TensorInfo)> {
        let &(file, tensor) = self.places.get(name)?.first()?;
        Some((file, &self.files[file].tensors[tensor]))
    }

    /// What is wrong with a tensor that is in several files: nothing where it is the same in all of them.
    pub(crate) fn ambiguity(&self, name: &str) -> Option<Fault> {
        let (first, others) = self.places.get(name)?.split_first()?;
        let copy = |&(file, tensor): &(usize, usize)| {
            let (file, tensor) = (&self.files[file], &self.files[file].tensors[tensor]);
            (tensor.dtype, &tensor.shape, file.bytes(tensor))
        };
        let &(other, _) = others.iter().find(|other| copy(other) != copy(first))?;
        let files = [first.0, other].map(|file| self.files[file].name.clone());
        Some(Fault::Ambiguous { tensor: name.into(), files })
    }

    /// What tells it from a checkpoint with the same config and headers, as a fine-tune has: when its files were written.
    pub fn stamp(&self) -> Result<String, ConvertError> {
        let files = self.files.iter().map(|file| {
            let modified = fs_err::metadata(self.folder.join(&file.name))?.modified()?;
            let age = modified.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            Ok(format!("{} {}", file.name, age.as_nanos()))
        });
        let text = files.collect::<std::io::Result<Vec<_>>>()?.join("\n");
        Ok(sha256(text.as_bytes()))
    }

    /// What packlight.json says of the source.
    pub fn provenance(&self) -> Provenance {
        let file = |file: &WeightFile| SourceFile {
            path: file.name.clone(),
            bytes: file.map.bytes().len() as u64,
            header_sha256: sha256(&file.map.bytes()[..file.header_bytes]),
        };
        Provenance {
            tensors: self.places.len() as u64,
            bytes: self.files.iter().map(|file| file.map.bytes().len() as u64).sum(),
            config_sha256: self.config_sha256.clone(),
            ignored_config_keys: self.ignored_keys.clone(),
            files: self.files.iter().map(file).collect(),
        }
    }
}

impl WeightFile {
    /// The bytes of a tensor; its span was checked against the file when the header was parsed.
    pub(crate) fn bytes(&self, tensor: &TensorInfo) -> &[u8] {
        let span = usize::try_from(tensor.span.start).unwrap_or(usize::MAX)
            ..usize::try_from(tensor.span.end).unwrap_or(usize::MAX);
        self.map.bytes().get(span).unwrap_or_default()
    }

    pub(crate) fn release(&self, span: std::ops::Range<u64>) {
        self.map.release(span);
    }
}

/// Says what a folder (or file) is that looks like something else people have.
fn refuse_other_kinds(folder: &Path) -> Result<(), ConvertError> {
    let is_gguf = |path: &Path| {
        path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
    };
    if !folder.is_dir() {
        let refuse = if is_gguf(folder) { ConvertError::Gguf } else { ConvertError::NotAFolder };
        return Err(refuse(folder.into()));
    }
    if folder.join(SINGLE).is_file() || folder.join(INDEX).is_file() {
        let whole = folder.join("config.json").is_file();
        return if whole { Ok(()) } else { Err(ConvertError::NoConfig(folder.into())) };
    }
    let mut names: Vec<PathBuf> =
        fs_err::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    names.sort();
    if let Some(path) = names.iter().find(|path| is_gguf(path)) {
        return Err(ConvertError::Gguf(path.clone()));
    }
    if folder.join("adapter_config.json").is_file() {
        return Err(ConvertError::Lora(folder.into()));
    }
    let is_pickle = |path: &&PathBuf| {
        path.extension()
            .is_some_and(|extension| ["bin", "pt", "pth"].iter().any(|e| extension == *e))
    };
    let found = names.iter().find(is_pickle).and_then(|path| path.file_name()?.to_str());
    if let Some(file) = found {
        return Err(ConvertError::Pickle { folder: folder.into(), file: file.into() });
    }
    let whole = folder.join("config.json").is_file();
    Err(if whole {
        ConvertError::NoWeights(folder.into())
    } else {
        ConvertError::NoConfig(folder.into())
    })
}

fn parse_json(path: &Path, bytes: &[u8]) -> Result<Value, ConvertError> {
    serde_json::from_slice(bytes)
        .map_err(|error| ConvertError::BadJson { path: path.into(), reason: error.to_string() })
}

fn read_index(folder: &Path) -> Result<Option<Vec<(String, String)>>, ConvertError> {
    if !folder.join(INDEX).is_file() {
        return Ok(None);
    }
    let json = fs_err::read(folder.join(INDEX))?;
    let index =
        parse_index(INDEX, &json).map_err(|error| ConvertError::Faults(vec![error.into()]))?;
    Ok(Some(index))
}

enum Opening {
    Fault(Fault),
    Io(std::io::Error),
}

fn open_file(folder: &Path, name: &str) -> Result<WeightFile, Opening> {
    let path = folder.join(name);
    if !path.is_file() {
        return Err(Opening::Fault(Fault::MissingFile(name.into())));
    }
    let map = Map::open(&path).map_err(Opening::Io)?;
    let (tensors, header_bytes) =
        parse_header(name, map.bytes()).map_err(|error| Opening::Fault(error.into()))?;
    Ok(WeightFile { name: name.into(), tensors, header_bytes, map })
}

/// Where every tensor is. Headers have the last word about that; the index chooses between files.
fn places(
    files: &[WeightFile],
    index: &[(String, String)],
) -> HashMap<String, Vec<(usize, usize)>> {
    let mut places: HashMap<String, Vec<(usize, usize)>> = HashMap::new();
    for (f, file) in files.iter().enumerate() {
        for (t, tensor) in file.tensors.iter().enumerate() {
            places.entry(tensor.name.clone()).or_default().push((f, t));
        }
    }
    for (tensor, file) in index {
        let Some(places) = places.get_mut(tensor) else { continue };
        if let Some(named) = places.iter().position(|&(f, _)| files[f].name == *file) {
            places.swap(0, named);
        }
    }
    places
}

/// Tensors of the index, those of the file that is named first before those of the next, each in the order of the index;
/// then those that only headers name.
fn order(mut index: Vec<(String, String)>, files: &[WeightFile]) -> Vec<String> {
    let mut rank = HashMap::new();
    for (_, file) in &index {
        let next = rank.len();
        rank.entry(file.clone()).or_insert(next);
    }
    index.sort_by_key(|(_, file)| rank[file]);
    let tensors = files.iter().flat_map(|file| &file.tensors).map(|tensor| tensor.name.clone());
    let mut seen = HashSet::new();
    let names = index.into_iter().map(|(tensor, _)| tensor).chain(tensors);
    names.filter(|name| seen.insert(name.clone())).collect()
}
