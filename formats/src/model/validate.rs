//! A description from a file is checked once, wholly; after that its shapes and indices can be relied on.

use std::collections::BTreeSet;

use super::{
    Attention, Experts, Gated, Head, Layer, Linear, Mixer, Mlp, Model, Norm, Norms, PerLayerInput,
    PerLayerInputs, Projections, Role, ShortConv, Weight,
};
use crate::dtype::elements;
use crate::rope::{Rope, Scaling};

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
        for (name, value) in [
            ("embed_scale", self.embed_scale),
            ("residual_scale", self.residual_scale),
            ("logit_scale", self.logit_scale),
        ] {
            factor(name, value)?;
        }
        softcap("logit_softcap", self.logit_softcap)?;
        self.ropes.iter().try_for_each(rope)?;
        matrix(&self.embed, vocab, hidden)?;
        if let Some(inputs) = &self.per_layer_inputs {
            self.per_layer_inputs(inputs)?;
        }
        for (i, layer) in self.layers.iter().enumerate() {
            self.layer(i, layer)?;
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

    fn layer(&self, i: usize, layer: &Layer) -> Result<(), ModelError> {
        let at = &format!("layer {i}");
        norms(&layer.mixer_norms, self.hidden)?;
        match &layer.mixer {
            Mixer::Attention(attention) => self.attention(at, i, attention)?,
            Mixer::ShortConv(conv) => self.short_conv(conv)?,
        }
        norms(&layer.mlp_norms, self.hidden)?;
        match &layer.mlp {
            Mlp::Gated(gated) => self.gated(gated)?,
            Mlp::Experts(experts) => self.experts(at, experts)?,
        }
        match (&layer.per_layer_input, &self.per_layer_inputs) {
            (Some(input), Some(inputs)) => self.per_layer_input(input, inputs.width)?,
            (None, _) => {}
            (Some(_), None) => return ensure(false, at, || "the model has no such inputs".into()),
        }
        layer.scale.as_ref().map_or(Ok(()), |scale| shape(scale, &[1]))
    }

    fn attention(&self, at: &str, i: usize, attention: &Attention) -> Result<(), ModelError> {
        let Attention { heads, kv_heads, head_dim, window, .. } = *attention;
        let widest =
            (u64::from(heads) + 2 * u64::from(kv_heads)).saturating_mul(u64::from(head_dim));
        let grouped =
            kv_heads > 0 && heads > 0 && head_dim > 0 && heads % kv_heads == 0 && widest <= MAX_DIM;
        ensure(grouped, at, || {
            format!("{heads} heads over {kv_heads} key-value heads of {head_dim}")
        })?;
        ensure(window != Some(0), at, || "its window is empty".into())?;
        factor(at, Some(attention.scale))?;
        softcap(at, attention.softcap)?;
        if let Some(id) = attention.rope {
            let rope = self.ropes.get(id.0 as usize);
            let turned = rope.is_some_and(|rope| rope.head_dim == head_dim);
            ensure(turned, at, || format!("no rope {} over heads of {head_dim}", id.0))?;
        }
        let (q, kv) = (heads * head_dim, kv_heads * head_dim);
        match &attention.projections {
            Projections::Fused(qkv) => linear(qkv, q + 2 * kv, self.hidden)?,
            Projections::Separate { q: queries, k, v } => {
                linear(queries, q, self.hidden)?;
                linear(k, kv, self.hidden)?;
                linear(v, kv, self.hidden)?;
            }
            Projections::KeyIsValue { q: queries, k } => {
                linear(queries, q, self.hidden)?;
                linear(k, kv, self.hidden)?;
            }
            Projections::Shared { q: queries, with } => {
                linear(queries, q, self.hidden)?;
                let normed = attention.k_norm.is_some() || attention.v_norm_eps.is_some();
                ensure(!normed, at, || "norms keys or values that it does not have".into())?;
                let owner = self.layers[..i].get(*with as usize);
                let owner = owner.and_then(|layer| layer.mixer.attention());
                let same = owner.is_some_and(|owner| {
                    owner.stores_kv() && owner.kv_heads == kv_heads && owner.head_dim == head_dim
                });
                ensure(same, at, || format!("layer {with} stores no such keys and values"))?;
            }
        }
        for (norm, projection) in [(&attention.q_norm, q), (&attention.k_norm, kv)] {
            let Some(norm) = norm else { continue };
            let whole = norm.weight.shape == [u64::from(projection)];
            self::norm(norm, if whole { projection } else { head_dim })?;
        }
        eps(at, attention.v_norm_eps.unwrap_or(0.0))?;
        linear(&attention.out, self.hidden, q)
    }

    fn short_conv(&self, conv: &ShortConv) -> Result<(), ModelError> {
        let (hidden, length) = (self.hidden, conv.kernel.columns());
        let values = length.saturating_mul(hidden.into());
        ensure((1..=MAX_DIM).contains(&values) && length > 0, &conv.kernel.name, || {
            format!("has {length} columns")
        })?;
        linear(&conv.input, 3 * hidden, hidden)?;
        shape(&conv.kernel, &[hidden.into(), 1, length])?;
        conv.bias.as_ref().map_or(Ok(()), |bias| shape(bias, &[hidden.into()]))?;
        linear(&conv.output, hidden, hidden)
    }

    fn gated(&self, mlp: &Gated) -> Result<(), ModelError> {
        let width = width_of(&mlp.down)?;
        linear(&mlp.gate_up, 2 * width, self.hidden)?;
        linear(&mlp.down, self.hidden, width)
    }

    fn experts(&self, at: &str, mlp: &Experts) -> Result<(), ModelError> {
        let (count, hidden) = (mlp.router.weight.rows(), u64::from(self.hidden));
        let width = u64::from(width_of(&mlp.down)?);
        let rows = count.saturating_mul(2 * width).max(count.saturating_mul(hidden));
        let sane = count > 0 && rows <= MAX_DIM && u64::from(mlp.per_token) <= count;
        ensure(sane && mlp.per_token > 0, at, || {
            format!("{} of {count} experts of {width}", mlp.per_token)
        })?;
        shape(&mlp.router.weight, &[count, hidden])?;
        mlp.router.bias.as_ref().map_or(Ok(()), |bias| shape(bias, &[count]))?;
        for (linear, rows, columns) in
            [(&mlp.gate_up, 2 * width, hidden), (&mlp.down, hidden, width)]
        {
            shape(&linear.weight, &[count, rows, columns])?;
            linear.bias.as_ref().map_or(Ok(()), |bias| shape(bias, &[count, rows]))?;
        }
        Ok(())
    }

    fn per_layer_inputs(&self, inputs: &PerLayerInputs) -> Result<(), ModelError> {
        let all = (self.layers.len() as u64).saturating_mul(inputs.width.into());
        let sane = u32::try_from(all).ok().filter(|&all| (1..=MAX_DIM).contains(&u64::from(all)));
        let Some(all) = sane else {
            return ensure(false, "per_layer_inputs", || format!("are {all} values wide"));
        };
        for value in [inputs.table_scale, inputs.projection_scale, inputs.scale] {
            factor("per_layer_inputs", Some(value))?;
        }
        // Its rows are those of the embedding, or fewer.
        let rows = inputs.table.rows();
        ensure((1..=u64::from(self.vocab)).contains(&rows), &inputs.table.name, || {
            format!("has {rows} rows for {} tokens", self.vocab)
        })?;
        shape(&inputs.table, &[rows, all.into()])?;
        // Its rows are read one by one, which those of a projection may not be stored for.
        ensure(inputs.table.role == Role::Embedding, &inputs.table.name, || {
            "is no embedding".into()
        })?;
        linear(&inputs.projection, all, self.hidden)?;
        norm(&inputs.norm, inputs.width)
    }

    fn per_layer_input(&self, input: &PerLayerInput, width: u32) -> Result<(), ModelError> {
        linear(&input.gate, width, self.hidden)?;
        linear(&input.projection, self.hidden, width)?;
        norm(&input.norm, self.hidden)
    }
}

/// The columns of an MLP's last projection.
fn width_of(down: &Linear) -> Result<u32, ModelError> {
    let width = down.weight.columns();
    let sane =
        u32::try_from(width).ok().filter(|&width| (1..=MAX_DIM / 2).contains(&u64::from(width)));
    let wrong =
        || ModelError { at: down.weight.name.clone(), reason: format!("has {width} columns") };
    sane.ok_or_else(wrong)
}

fn rope(rope: &Rope) -> Result<(), ModelError> {
    let Rope { head_dim, width, theta, .. } = *rope;
    let paired = width > 0 && width % 2 == 0 && width <= head_dim && u64::from(width) <= MAX_DIM;
    ensure(paired, "rope", || format!("{width} values of heads of {head_dim} have no pairs"))?;
    ensure(theta.is_finite() && theta > 0.0, "rope", || format!("theta is {theta}"))?;
    let pairs = width as usize / 2;
    let (numbers, counted): (Vec<f64>, bool) = match &rope.scaling {
        Scaling::None => (Vec::new(), true),
        Scaling::Linear { factor } => (vec![*factor], true),
        Scaling::Llama3 { factor, low_freq_factor, high_freq_factor, .. } => {
            (vec![*factor, high_freq_factor - low_freq_factor], true)
        }
        Scaling::Yarn {
            factor, beta_fast, beta_slow, original_context, attention_factor, ..
        } => (
            // Logarithms are taken of all but the last.
            [*factor, *beta_fast, *beta_slow, f64::from(*original_context), theta.ln()]
                .into_iter()
                .map(|x| x.max(0.0))
                .chain([*attention_factor])
                .collect(),
            true,
        ),
        Scaling::LongRope { short, long, attention_factor, .. } => (
            short.iter().chain(long).chain([attention_factor]).copied().collect(),
            short.len() == pairs && long.len() == pairs,
        ),
        Scaling::Proportional { pairs: turned, factor } => {
            (vec![*factor], *turned as usize <= pairs)
        }
    };
    ensure(counted, "rope", || format!("its scaling is not one of {pairs} pairs"))?;
    let divides = numbers.iter().all(|number| number.is_finite() && *number != 0.0);
    ensure(divides, "rope", || "its scaling divides by nothing".into())
}

fn norms(norms: &Norms, width: u32) -> Result<(), ModelError> {
    norms.pre().into_iter().chain(norms.post()).try_for_each(|norm| self::norm(norm, width))
}

fn norm(norm: &Norm, width: u32) -> Result<(), ModelError> {
    eps(&norm.weight.name, norm.eps)?;
    shape(&norm.weight, &[width.into()])
}

fn eps(at: &str, eps: f32) -> Result<(), ModelError> {
    ensure(eps.is_finite() && eps >= 0.0, at, || format!("eps is {eps}"))
}

fn factor(at: &str, value: Option<f32>) -> Result<(), ModelError> {
    let value = value.unwrap_or(1.0);
    ensure(value.is_finite(), at, || format!("a factor is {value}"))
}

fn softcap(at: &str, cap: Option<f32>) -> Result<(), ModelError> {
    let cap = cap.unwrap_or(1.0);
    ensure(cap.is_finite() && cap > 0.0, at, || format!("a softcap is {cap}"))
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
