//! A description from a file is checked once, wholly; after that its shapes and indices can be relied on.

use std::collections::BTreeSet;

use super::{Attention, Head, Layer, Linear, Model, Norm, Weight};
use crate::dtype::elements;

/// Beyond any model; products of a few such dimensions fit u64, and rows times columns of any weight do too.
const MAX_DIM: u64 = 1 << 24;

/// A description whose parts contradict each other.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {reason}")]
pub struct ModelError {
    /// The weight or block at fault.
    pub at: String,
    /// Why it cannot be.
    pub reason: String,
}

fn ensure(holds: bool, at: &str, reason: impl FnOnce() -> String) -> Result<(), ModelError> {
    if holds { Ok(()) } else { Err(ModelError { at: at.into(), reason: reason() }) }
}

impl Model {
    /// Shapes agree with dimensions and with each other, indices are in range, names are unique.
    pub fn validate(&self) -> Result<(), ModelError> {
        let Self { vocab, hidden, context, .. } = *self;
        for (name, dim) in [("vocab", vocab), ("hidden", hidden), ("context", context)] {
            ensure((1..=MAX_DIM).contains(&u64::from(dim)), name, || format!("is {dim}"))?;
        }
        for rope in &self.ropes {
            let even = rope.head_dim > 0 && rope.head_dim % 2 == 0;
            ensure(even, "rope", || format!("head_dim {} has no rotary pairs", rope.head_dim))?;
        }
        matrix(&self.embed, vocab, hidden)?;
        for (i, layer) in self.layers.iter().enumerate() {
            self.layer(&format!("layer {i}"), layer)?;
        }
        norm(&self.norm, hidden)?;
        if let Head::Own(head) = &self.head {
            linear(head, vocab, hidden)?;
        }
        let mut names = BTreeSet::new();
        for weight in self.weights() {
            ensure(names.insert(&weight.name), &weight.name, || "names two weights".into())?;
            sources(weight)?;
        }
        Ok(())
    }

    fn layer(&self, at: &str, layer: &Layer) -> Result<(), ModelError> {
        let Attention { heads, kv_heads, head_dim, window, rope, .. } = layer.attention;
        let widest =
            (u64::from(heads) + 2 * u64::from(kv_heads)).saturating_mul(u64::from(head_dim));
        let grouped =
            kv_heads > 0 && heads > 0 && head_dim > 0 && heads % kv_heads == 0 && widest <= MAX_DIM;
        ensure(grouped, at, || {
            format!("{heads} heads over {kv_heads} key-value heads of {head_dim}")
        })?;
        ensure(window != Some(0), at, || "its window is empty".into())?;
        let turned = self.ropes.get(rope.0 as usize).is_some_and(|rope| rope.head_dim == head_dim);
        ensure(turned, at, || format!("no rope {} over heads of {head_dim}", rope.0))?;
        norm(&layer.attention_norm, self.hidden)?;
        linear(&layer.attention.qkv, (heads + 2 * kv_heads) * head_dim, self.hidden)?;
        linear(&layer.attention.out, self.hidden, heads * head_dim)?;
        if let Some(qk_norm) = &layer.attention.qk_norm {
            norm(&qk_norm.q, head_dim)?;
            norm(&qk_norm.k, head_dim)?;
        }
        norm(&layer.mlp_norm, self.hidden)?;
        let width = layer.mlp.down.weight.columns();
        let sane = u32::try_from(width)
            .ok()
            .filter(|&width| (1..=MAX_DIM / 2).contains(&u64::from(width)));
        let Some(width) = sane else {
            return ensure(false, &layer.mlp.down.weight.name, || format!("has {width} columns"));
        };
        linear(&layer.mlp.gate_up, 2 * width, self.hidden)?;
        linear(&layer.mlp.down, self.hidden, width)
    }
}

fn norm(norm: &Norm, width: u32) -> Result<(), ModelError> {
    ensure(norm.eps.is_finite() && norm.eps >= 0.0, &norm.weight.name, || {
        format!("eps is {}", norm.eps)
    })?;
    shape(&norm.weight, &[width.into()])
}

fn linear(linear: &Linear, rows: u32, columns: u32) -> Result<(), ModelError> {
    matrix(&linear.weight, rows, columns)?;
    linear.bias.as_ref().map_or(Ok(()), |bias| shape(bias, &[rows.into()]))
}

fn matrix(weight: &Weight, rows: u32, columns: u32) -> Result<(), ModelError> {
    shape(weight, &[rows.into(), columns.into()])
}

fn shape(weight: &Weight, expected: &[u64]) -> Result<(), ModelError> {
    ensure(weight.shape == expected, &weight.name, || {
        format!("is {:?}, but its place needs {expected:?}", weight.shape)
    })
}

/// What a recipe reads fills the weight.
fn sources(weight: &Weight) -> Result<(), ModelError> {
    let counts = weight.recipe.sources().iter().map(|source| elements(&source.shape));
    let total = counts.into_iter().try_fold(0u64, |sum, count| sum.checked_add(count?));
    ensure(total == elements(&weight.shape), &weight.name, || "its sources do not fill it".into())
}
