//! Headers of safetensors files, and the index that spreads a checkpoint over many of them.
//!
//! Parsing and validation are the safetensors crate's; ours names the file and, where it can, the tensor at fault.

use safetensors::tensor::{SafeTensorError, SafeTensors};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::file_name::is_file_name;

/// A tensor of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Its element type, of whatever kind.
    pub dtype: safetensors::Dtype,
    /// Outermost dimension first.
    pub shape: Vec<u64>,
    /// Its bytes in the file.
    pub span: std::ops::Range<u64>,
}

/// A file that is not sound safetensors.
#[derive(Debug, thiserror::Error)]
#[error("`{file}`: {reason}")]
pub struct HeaderError {
    /// The file.
    pub file: String,
    /// What is wrong with it.
    pub reason: String,
}

/// The tensors of a file in the order of their bytes, and the length of the header (its eight-byte size included).
///
/// `bytes` is the whole file; only its header is read. Tensors neither overlap nor leave gaps nor pass the file's end.
pub fn parse_header(file: &str, bytes: &[u8]) -> Result<(Vec<TensorInfo>, usize), HeaderError> {
    let (header, metadata) =
        SafeTensors::read_metadata(bytes).map_err(|error| diagnose(file, bytes, &error))?;
    let header = header + size_of::<u64>();
    let tensors = metadata.offset_keys().into_iter().filter_map(|name| {
        let info = metadata.info(&name)?;
        let (start, end) = info.data_offsets;
        Some(TensorInfo {
            dtype: info.dtype,
            shape: info.shape.iter().map(|&dim| dim as u64).collect(),
            span: (header + start) as u64..(header + end) as u64,
            name,
        })
    });
    Ok((tensors.collect(), header))
}

/// The crate's error with the tensor that a second, lenient reading of the header finds at fault.
fn diagnose(file: &str, bytes: &[u8], error: &SafeTensorError) -> HeaderError {
    let culprit = lenient_header(bytes).and_then(|(tensors, data)| {
        let faults = tensors.iter().filter_map(|(name, value)| {
            let entry = Entry::deserialize(value).ok()?;
            let (start, end) = entry.data_offsets;
            let span = end.checked_sub(start);
            let elements = crate::dtype::elements(&entry.shape);
            let size = elements.and_then(|n| n.checked_mul(entry.dtype.bitsize() as u64)).map(|bits| bits / 8);
            if end > data {
                Some(format!("tensor `{name}` ends at byte {end} of the data, but the file holds only {data}"))
            } else if size != span || span.is_none() {
                let Entry { dtype, shape, .. } = entry;
                Some(format!("tensor `{name}` is {dtype:?} {shape:?}, which does not fill bytes {start}..{end}"))
            } else {
                None
            }
        });
        faults.into_iter().next()
    });
    HeaderError { file: file.into(), reason: culprit.unwrap_or_else(|| error.to_string()) }
}

#[derive(Deserialize)]
struct Entry {
    dtype: safetensors::Dtype,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// The header's entries and the bytes that follow it, if there is a header at all.
fn lenient_header(bytes: &[u8]) -> Option<(Map<String, Value>, u64)> {
    let (size, rest) = bytes.split_first_chunk::<8>()?;
    let size = usize::try_from(u64::from_le_bytes(*size)).ok()?;
    let tensors = serde_json::from_slice(rest.get(..size)?).ok()?;
    Some((tensors, (rest.len() - size) as u64))
}

/// `model.safetensors.index.json`: which file holds each tensor, in the order of the JSON.
///
/// The order matters: MLC emits records in it.
pub fn parse_index(file: &str, json: &[u8]) -> Result<Vec<(String, String)>, HeaderError> {
    let fault = |reason: String| HeaderError { file: file.into(), reason };
    let index: Value =
        serde_json::from_slice(json).map_err(|error| fault(format!("not JSON: {error}")))?;
    let map = index.get("weight_map").and_then(Value::as_object);
    let map = map.ok_or_else(|| fault("has no `weight_map` object".into()))?;
    map.iter()
        .map(|(tensor, path)| match path.as_str() {
            Some(path) if is_file_name(path) => Ok((tensor.clone(), path.to_owned())),
            _ => Err(fault(format!(
                "`weight_map` sends tensor `{tensor}` to {path}, which is not a file name"
            ))),
        })
        .collect()
}
