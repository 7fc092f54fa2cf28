//! Scales of fp8 weights: one for a tensor, or one for each block of it.

use packlight_formats::fp8::SCALE_SUFFIX;
use packlight_formats::safetensors::TensorInfo;

use crate::checkpoint::Checkpoint;
use crate::element::Element;
use crate::error::Fault;

/// The scales of one weight, row-major over its blocks.
pub(crate) struct ScaleGrid {
    values: Vec<f32>,
    /// Blocks side by side.
    width: u64,
    /// Rows and columns of a block.
    block: [u64; 2],
}

impl ScaleGrid {
    /// The scales of a tensor; `None` where it is not fp8.
    pub(crate) fn of(checkpoint: &Checkpoint, tensor: &TensorInfo) -> Option<Self> {
        if Element::of(tensor.dtype) != Some(Element::E4m3) {
            return None;
        }
        let layout = checkpoint.fp8_scales()?;
        let shape = <[u64; 2]>::try_from(tensor.shape.as_slice()).ok()?;
        let (file, scales) = checkpoint.tensor(&format!("{}{SCALE_SUFFIX}", tensor.name))?;
        let mut values = Vec::new();
        Element::of(scales.dtype)?.read(checkpoint.files()[file].bytes(scales), &mut values);
        Some(Self { values, width: layout.shape(shape)[1], block: layout.block(shape) })
    }

    /// Multiplies neighbouring elements of a tensor with rows of `stride`, the first of them at `first`.
    pub(crate) fn apply(&self, values: &mut [f32], first: u64, stride: u64) {
        for (value, at) in values.iter_mut().zip(first..) {
            let (row, column) = (at / stride, at % stride);
            let index = row / self.block[0] * self.width + column / self.block[1];
            let scale = usize::try_from(index).ok().and_then(|index| self.values.get(index));
            // The grid was checked to cover the tensor before anything was read.
            *value *= scale.copied().unwrap_or(f32::NAN);
        }
    }
}

/// What is wrong with the scales of an fp8 tensor, if anything.
pub(crate) fn scale_fault(checkpoint: &Checkpoint, tensor: &TensorInfo) -> Option<Fault> {
    let name = format!("{}{SCALE_SUFFIX}", tensor.name);
    let Some((file, scales)) = checkpoint.tensor(&name) else {
        return Some(Fault::MissingScales { tensor: tensor.name.clone(), scales: name });
    };
    let file = checkpoint.files()[file].name.clone();
    if matches!(Element::of(scales.dtype), None | Some(Element::E4m3)) {
        return Some(Fault::WrongDtype {
            tensor: name,
            file,
            dtype: format!("{:?}", scales.dtype),
        });
    }
    let layout = checkpoint.fp8_scales()?;
    let Ok(shape) = <[u64; 2]>::try_from(tensor.shape.as_slice()) else {
        // A vector in fp8 has nothing to lay blocks over.
        return Some(Fault::WrongDtype {
            tensor: tensor.name.clone(),
            file,
            dtype: format!("{:?}", tensor.dtype),
        });
    };
    let expected = layout.shape(shape);
    let single = expected == [1, 1] && scales.shape.iter().all(|&dim| dim == 1);
    (scales.shape != expected && !single).then(|| Fault::WrongShape {
        tensor: name,
        file,
        found: scales.shape.clone(),
        expected: expected.to_vec(),
    })
}
