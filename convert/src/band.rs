//! A band: some rows of a weight, evaluated from their sources and rounded to the scheme's dtype.

use std::ops::Range;

use packlight_formats::dtype::Dtype;
use packlight_formats::model::Weight;
use packlight_formats::quant::float::{round_bf16, round_f16};
use packlight_formats::safetensors::TensorInfo;

use crate::checkpoint::{Checkpoint, WeightFile};
use crate::error::ConvertError;

/// The part of a tensor that a band reads.
struct Run<'a> {
    file: &'a WeightFile,
    tensor: &'a TensorInfo,
    dtype: Dtype,
    /// Elements of the tensor, flat.
    elements: Range<u64>,
}

impl Run<'_> {
    /// Its bytes, relative to the tensor.
    fn span(&self) -> Range<u64> {
        self.elements.start * self.dtype.bytes()..self.elements.end * self.dtype.bytes()
    }
}

/// Rows `rows` of `weight`, `[rows, columns]`, rounded to `dtype`.
///
/// Sources are stacked in their own dtype and rounded once, as `numpy.concatenate` and `astype` do.
pub(crate) fn evaluate(
    checkpoint: &Checkpoint,
    weight: &Weight,
    rows: &Range<u64>,
    dtype: Dtype,
    allow_non_finite: bool,
) -> Result<Vec<f32>, ConvertError> {
    let count = (rows.end - rows.start) * weight.columns();
    let mut values = Vec::with_capacity(usize::try_from(count).unwrap_or(0));
    for run in runs(checkpoint, weight, rows) {
        let span = run.span();
        let span = usize::try_from(span.start).unwrap_or(usize::MAX)
            ..usize::try_from(span.end).unwrap_or(usize::MAX);
        let bytes = run.file.bytes(run.tensor).get(span).unwrap_or_default();
        let start = values.len();
        match dtype {
            Dtype::Float16 => read(bytes, run.dtype, round_f16, &mut values),
            Dtype::Bfloat16 => read(bytes, run.dtype, round_bf16, &mut values),
            _ => read(bytes, run.dtype, |x| x, &mut values),
        }
        if !allow_non_finite && let Some(i) = values[start..].iter().position(|x| !x.is_finite()) {
            return Err(non_finite(&run, bytes, i, dtype));
        }
    }
    Ok(values)
}

/// Lets go of the pages behind rows that have been evaluated.
pub(crate) fn release(checkpoint: &Checkpoint, weight: &Weight, rows: &Range<u64>) {
    for run in runs(checkpoint, weight, rows) {
        let (start, span) = (run.tensor.span.start, run.span());
        run.file.release(start + span.start..start + span.end);
    }
}

/// The runs of source elements that make up some rows of a weight, in order.
fn runs<'a>(
    checkpoint: &'a Checkpoint,
    weight: &'a Weight,
    rows: &'a Range<u64>,
) -> impl Iterator<Item = Run<'a>> {
    let columns = weight.columns();
    let mut first = 0;
    weight.recipe.sources().iter().filter_map(move |source| {
        let above = first..first + source.shape[0];
        first = above.end;
        let (start, end) = (rows.start.max(above.start), rows.end.min(above.end));
        let (file, tensor) = checkpoint.tensor(&source.tensor).filter(|_| start < end)?;
        Some(Run {
            file: &checkpoint.files()[file],
            tensor,
            dtype: Dtype::from_safetensors(tensor.dtype)?,
            elements: (start - above.start) * columns..(end - above.start) * columns,
        })
    })
}

fn read(bytes: &[u8], dtype: Dtype, round: impl Fn(f32) -> f32, out: &mut Vec<f32>) {
    let pairs = || bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    match dtype {
        Dtype::Bfloat16 => {
            out.extend(pairs().map(|bits| round(f32::from_bits(u32::from(bits) << 16))));
        }
        Dtype::Float16 => {
            out.extend(pairs().map(|bits| round(half::f16::from_bits(bits).to_f32())));
        }
        _ => out.extend(
            bytes.chunks_exact(4).map(|b| round(f32::from_le_bytes([b[0], b[1], b[2], b[3]]))),
        ),
    }
}

fn non_finite(run: &Run<'_>, bytes: &[u8], i: usize, dtype: Dtype) -> ConvertError {
    let mut original = Vec::new();
    read(bytes, run.dtype, |x| x, &mut original);
    let value = original[i];
    let (tensor, file) = (run.tensor.name.clone(), run.file.name.clone());
    let index = unravel(run.elements.start + i as u64, &run.tensor.shape);
    if value.is_finite() {
        ConvertError::Overflow { tensor, file, index, value, dtype }
    } else {
        ConvertError::NonFinite { tensor, file, index, value }
    }
}

/// A flat index as one index per dimension.
fn unravel(mut flat: u64, shape: &[u64]) -> Vec<u64> {
    let mut index: Vec<u64> = shape
        .iter()
        .rev()
        .map(|dim| {
            let at = flat % dim;
            flat /= dim;
            at
        })
        .collect();
    index.reverse();
    index
}
