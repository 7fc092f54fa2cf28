//! Weights of the bundle, how they are made from the checkpoint's tensors, and the layers that hold them.

use serde::{Deserialize, Serialize};

/// RMS norm: `x / sqrt(mean(x^2) + eps) * weight`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Norm {
    /// `[width]`.
    pub weight: Weight,
    /// Added to the mean square.
    pub eps: f32,
}

/// `y = W x + b`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Linear {
    /// `[out, in]`.
    pub weight: Weight,
    /// `[out]`.
    pub bias: Option<Weight>,
}

/// A weight of the bundle and how it is made from the checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Weight {
    /// Name in the bundle, ending in `.weight` where it can be quantised.
    pub name: String,
    /// `[rows, columns]`, `[width]` of a vector, or `[experts, rows, columns]` of matrices that are one weight.
    pub shape: Vec<u64>,
    /// What it is, which with the scheme decides whether it is quantised.
    pub role: Role,
    /// How it is made.
    pub recipe: Recipe,
}

/// What a weight is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// A projection.
    Linear,
    /// The token table (also the head, where tied).
    Embedding,
    /// An output head of its own.
    Head,
    /// A projection of every expert.
    Experts,
    /// A small matrix that gates or routes: never quantised.
    Gate,
    /// A norm, a bias or the kernels of a short convolution: never quantised.
    Vector,
}

/// How a weight is made from checkpoint tensors. Data, so that it can be printed, compared and streamed by row bands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Recipe {
    /// The tensor as it is.
    Copy(Source),
    /// Tensors stacked along the first dimension, in this order.
    Rows(Vec<Source>),
    /// `1 + x`, rounded to the tensor's own dtype before anything else: norms that are stored as their distance from 1.
    AddOne(Source),
}

/// A checkpoint tensor and the shape it must have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Name in the checkpoint.
    pub tensor: String,
    /// Expected shape.
    pub shape: Vec<u64>,
}

impl Source {
    /// Rows that it gives to a weight.
    pub fn rows(&self) -> u64 {
        rows(&self.shape)
    }
}

/// Everything but the last dimension; of a vector each value is a row. Saturates.
fn rows(shape: &[u64]) -> u64 {
    let above = if shape.len() > 1 { &shape[..shape.len() - 1] } else { shape };
    above.iter().fold(1, |rows, dim| rows.saturating_mul(*dim))
}

impl Recipe {
    /// The tensors it reads, in the order of their rows.
    pub fn sources(&self) -> &[Source] {
        match self {
            Self::Copy(source) | Self::AddOne(source) => std::slice::from_ref(source),
            Self::Rows(sources) => sources,
        }
    }
}

impl std::fmt::Display for Recipe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Self::AddOne(_) = self {
            f.write_str("1 + ")?;
        }
        for (i, source) in self.sources().iter().enumerate() {
            write!(f, "{}{}", if i == 0 { "" } else { " ++ " }, source.tensor)?;
        }
        Ok(())
    }
}

impl Weight {
    /// A weight that is one checkpoint tensor, unchanged.
    pub fn copy(
        name: impl Into<String>,
        tensor: impl Into<String>,
        shape: &[u64],
        role: Role,
    ) -> Self {
        let source = Source { tensor: tensor.into(), shape: shape.to_vec() };
        Self { name: name.into(), shape: shape.to_vec(), role, recipe: Recipe::Copy(source) }
    }

    /// Rows, those of all experts.
    pub fn rows(&self) -> u64 {
        rows(&self.shape)
    }

    /// Values in one row (the last dimension of a matrix); 1 for a vector.
    pub fn columns(&self) -> u64 {
        if self.shape.len() > 1 { self.shape[self.shape.len() - 1] } else { 1 }
    }
}

impl Linear {
    pub(super) fn weights(&self) -> impl Iterator<Item = &Weight> {
        std::iter::once(&self.weight).chain(&self.bias)
    }
}
