//! A band: a block of a weight, evaluated from its sources and rounded to the scheme's dtype.

use std::ops::Range;

use packlight_formats::dtype::Dtype;
use packlight_formats::model::{Recipe, Weight};
use packlight_formats::quant::float::round_all;
use packlight_formats::safetensors::TensorInfo;

use crate::checkpoint::{Checkpoint, WeightFile};
use crate::element::Element;
use crate::error::ConvertError;
use crate::scales::ScaleGrid;

/// Some columns of some rows of a weight.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) rows: Range<u64>,
    pub(crate) columns: Range<u64>,
}

impl Block {
    pub(crate) fn height(&self) -> u64 {
        self.rows.end - self.rows.start
    }

    pub(crate) fn width(&self) -> u64 {
        self.columns.end - self.columns.start
    }
}

/// The part of a tensor that a band reads.
pub(crate) struct Run<'a> {
    file: &'a WeightFile,
    tensor: &'a TensorInfo,
    pub(crate) element: Element,
    /// Scales of an fp8 tensor.
    pub(crate) scales: Option<ScaleGrid>,
    rows: Range<u64>,
    /// Elements in a row of the tensor.
    stride: u64,
}

impl<'a> Run<'a> {
    /// All its rows, as bytes relative to the tensor.
    fn span(&self) -> Range<u64> {
        let row = self.stride * self.element.bytes();
        self.rows.start * row..self.rows.end * row
    }

    /// Some columns of its rows, flat: neighbouring elements of the tensor, where they start and their bytes.
    pub(crate) fn pieces(&self, columns: Range<u64>) -> impl Iterator<Item = (u64, &'a [u8])> {
        let whole = columns == (0..self.stride);
        let height = self.rows.end - self.rows.start;
        let (pieces, length) =
            if whole { (1, height * self.stride) } else { (height, columns.end - columns.start) };
        let (first, size) = (self.rows.start * self.stride + columns.start, self.element.bytes());
        let (bytes, stride) = (self.file.bytes(self.tensor), self.stride);
        (0..pieces).map(move |row| {
            let start = first + row * stride;
            let index = |element: u64| usize::try_from(element * size).unwrap_or(usize::MAX);
            (start, bytes.get(index(start)..index(start + length)).unwrap_or_default())
        })
    }
}

/// A block of `weight`, row-major, rounded to `dtype`.
///
/// Sources are stacked in their own dtype and rounded once, as `numpy.concatenate` and `astype` do.
pub(crate) fn evaluate(
    checkpoint: &Checkpoint,
    weight: &Weight,
    block: &Block,
    dtype: Dtype,
    allow_non_finite: bool,
) -> Result<Vec<f32>, ConvertError> {
    let count = block.height() * block.width();
    let mut values = Vec::with_capacity(usize::try_from(count).unwrap_or(0));
    for run in runs(checkpoint, weight, &block.rows) {
        for (first, bytes) in run.pieces(block.columns.clone()) {
            let start = values.len();
            run.element.read(bytes, &mut values);
            let values = &mut values[start..];
            if let Some(scales) = &run.scales {
                scales.apply(values, first, run.stride);
            }
            if let Recipe::AddOne(_) = weight.recipe {
                // numpy adds in the tensor's own dtype, so the sum is rounded twice.
                for x in &mut *values {
                    *x = run.element.round(*x + 1.0);
                }
            }
            if !round_all(dtype, values)
                && !allow_non_finite
                && let Some(i) = values.iter().position(|x| !x.is_finite())
            {
                return Err(non_finite(&run, first, bytes, i, dtype));
            }
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

/// The runs of source rows that make up some rows of a weight, in order.
pub(crate) fn runs<'a>(
    checkpoint: &'a Checkpoint,
    weight: &'a Weight,
    rows: &'a Range<u64>,
) -> impl Iterator<Item = Run<'a>> {
    let columns = weight.columns();
    let mut first = 0;
    weight.recipe.sources().iter().filter_map(move |source| {
        let above = first..first + source.rows();
        first = above.end;
        let (start, end) = (rows.start.max(above.start), rows.end.min(above.end));
        let (file, tensor) = checkpoint.tensor(&source.tensor).filter(|_| start < end)?;
        Some(Run {
            file: &checkpoint.files()[file],
            tensor,
            element: Element::of(tensor.dtype)?,
            scales: ScaleGrid::of(checkpoint, tensor),
            rows: start - above.start..end - above.start,
            stride: columns,
        })
    })
}

fn non_finite(run: &Run<'_>, first: u64, bytes: &[u8], i: usize, dtype: Dtype) -> ConvertError {
    let mut original = Vec::new();
    run.element.read(bytes, &mut original);
    let value = original[i];
    let (tensor, file) = (run.tensor.name.clone(), run.file.name.clone());
    let index = unravel(first + i as u64, &run.tensor.shape);
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
