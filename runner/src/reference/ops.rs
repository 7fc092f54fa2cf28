//! The operations of a plan in plain f32. Rows are tokens; a matrix `[rows, width]` is a slice, row after row.

use packlight_formats::model::Activation;
use rayon::prelude::*;

/// Where the heads of a row are: `heads` runs of `head_dim` values starting at column `offset` of rows `width` wide.
#[derive(Clone, Copy, Debug)]
pub struct HeadView {
    pub width: usize,
    pub offset: usize,
    pub heads: usize,
    pub head_dim: usize,
}

impl HeadView {
    fn columns(self) -> std::ops::Range<usize> {
        self.offset..self.offset + self.heads * self.head_dim
    }

    /// The heads of every row of `x`, in order.
    fn each_mut(self, x: &mut [f32]) -> impl Iterator<Item = (usize, &mut [f32])> {
        let rows = x.chunks_mut(self.width).enumerate();
        rows.flat_map(move |(t, row)| {
            row[self.columns()].chunks_mut(self.head_dim).map(move |head| (t, head))
        })
    }
}

/// `out[t, :] = x[t, :] / sqrt(mean(x[t, :]^2) + eps) * weight`; rows are as wide as `weight`.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    for (x, out) in x.chunks(weight.len()).zip(out.chunks_mut(weight.len())) {
        out.copy_from_slice(x);
        norm_in_place(out, weight, eps);
    }
}

/// The same in place over each head; without a weight, as if it were all ones.
pub fn head_norm(x: &mut [f32], view: HeadView, weight: Option<&[f32]>, eps: f32) {
    let ones = vec![1.0; if weight.is_none() { view.head_dim } else { 0 }];
    let weight = weight.unwrap_or(&ones);
    for (_, head) in view.each_mut(x) {
        norm_in_place(head, weight, eps);
    }
}

fn norm_in_place(x: &mut [f32], weight: &[f32], eps: f32) {
    let mean_square = dot(x, x) / x.len() as f32;
    let factor = 1.0 / (mean_square + eps).sqrt();
    for (x, w) in x.iter_mut().zip(weight) {
        *x *= factor * w;
    }
}

/// Rows of a weight that are decoded together: few enough to stay in a core's cache while every token meets them.
const ROWS: usize = 16;

/// `out[t, n] = sum_k x[t, k] * weight[n, k] + bias[n]`.
///
/// `weight_row(n, row)` writes row `n` of the weight; it is called once for each row, so that what is packed is decoded
/// once for all tokens. Each sum is made by one thread in an order of its own, whatever the threads and tokens are.
pub fn matmul(
    x: &[f32],
    columns: usize,
    rows: usize,
    weight_row: impl Fn(usize, &mut [f32]) + Sync,
    bias: Option<&[f32]>,
    out: &mut [f32],
) {
    let tokens = x.len() / columns;
    let mut transposed = vec![0.0; rows * tokens]; // [rows, tokens], so that threads own whole runs of it
    transposed.par_chunks_mut(ROWS * tokens).enumerate().for_each_init(
        || vec![0.0; ROWS * columns],
        |block, (i, out)| {
            let first = i * ROWS;
            let block = &mut block[..out.len() / tokens * columns];
            block.chunks_mut(columns).zip(first..).for_each(|(row, n)| weight_row(n, row));
            for (t, x) in x.chunks(columns).enumerate() {
                for (i, row) in block.chunks(columns).enumerate() {
                    out[i * tokens + t] = dot(x, row) + bias.map_or(0.0, |bias| bias[first + i]);
                }
            }
        },
    );
    out.par_chunks_mut(rows).enumerate().for_each(|(t, out)| {
        out.iter_mut().zip(transposed.iter().skip(t).step_by(tokens)).for_each(|(o, x)| *o = *x);
    });
}

/// Turns the pairs `(i, i + pairs)` of each head by `(past + t) * inv_freq[i]`, and stretches them by `factor`.
/// `inv_freq` has `pairs` entries; what follows the pairs stays as it is.
pub fn rope(x: &mut [f32], view: HeadView, inv_freq: &[f32], factor: f32, past: usize) {
    let pairs = inv_freq.len();
    for (t, head) in view.each_mut(x) {
        let (first, second) = head[..2 * pairs].split_at_mut(pairs);
        for ((a, b), freq) in first.iter_mut().zip(second).zip(inv_freq) {
            let (sin, cos) = ((past + t) as f32 * freq).sin_cos();
            let (sin, cos) = (sin * factor, cos * factor);
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        }
    }
}

/// Writes the heads of each row of `x` to `cache`, `[positions, heads, head_dim]`, from position `past` on.
pub fn store(x: &[f32], view: HeadView, cache: &mut [f32], past: usize) {
    let size = view.heads * view.head_dim;
    for (row, slot) in x.chunks(view.width).zip(cache[past * size..].chunks_mut(size)) {
        slot.copy_from_slice(&row[view.columns()]);
    }
}

/// Which keys a query sees, and how scores are scaled.
#[derive(Clone, Copy, Debug)]
pub struct AttendParams {
    pub kv_heads: usize,
    pub scale: f32,
    pub softcap: Option<f32>,
    pub window: Option<usize>,
    /// Positions before this call.
    pub past: usize,
}

/// Softmax attention; `keys` and `values` are `[positions, kv_heads, head_dim]`, `out` is `[T, heads * head_dim]`.
///
/// Query `t` stands at position `past + t` and sees itself and what came before, at most `window` positions.
/// Query head `h` reads key head `h / (heads / kv_heads)`.
pub fn attend(
    q: &[f32],
    view: HeadView,
    keys: &[f32],
    values: &[f32],
    params: AttendParams,
    out: &mut [f32],
) {
    let (head_dim, kv_heads) = (view.head_dim, params.kv_heads);
    let queries_per_key = view.heads / kv_heads;
    out.par_chunks_mut(head_dim).enumerate().for_each(|(i, out)| {
        let (t, head) = (i / view.heads, i % view.heads);
        let query = &q[t * view.width + view.offset + head * head_dim..][..head_dim];
        let at = |cache: &[f32], position: usize| {
            let start = (position * kv_heads + head / queries_per_key) * head_dim;
            start..start + head_dim.min(cache.len() - start)
        };
        let position = params.past + t;
        let first = params.window.map_or(0, |window| (position + 1).saturating_sub(window));
        let mut scores: Vec<f32> =
            (first..=position).map(|j| dot(query, &keys[at(keys, j)]) * params.scale).collect();
        if let Some(cap) = params.softcap {
            softcap(&mut scores, cap);
        }
        softmax(&mut scores);
        out.fill(0.0);
        for (score, j) in scores.iter().zip(first..) {
            for (out, value) in out.iter_mut().zip(&values[at(values, j)]) {
                *out += score * value;
            }
        }
    });
}

fn softmax(scores: &mut [f32]) {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for score in &mut *scores {
        *score = (*score - max).exp();
        sum += *score;
    }
    for score in scores {
        *score /= sum;
    }
}

/// Where the operands of a gate are: column `offset` of rows `width` wide.
#[derive(Clone, Copy, Debug)]
pub struct ColumnView<'a> {
    pub x: &'a [f32],
    pub width: usize,
    pub offset: usize,
}

/// `out[t, i] = act(gate[t, i]) * up[t, i]`; rows of `out` are `width` wide.
pub fn gate(
    gate: ColumnView<'_>,
    up: ColumnView<'_>,
    activation: Activation,
    width: usize,
    out: &mut [f32],
) {
    let rows = gate.x.chunks(gate.width).zip(up.x.chunks(up.width));
    for ((gates, ups), out) in rows.zip(out.chunks_mut(width)) {
        for ((out, &gate), up) in out.iter_mut().zip(&gates[gate.offset..]).zip(&ups[up.offset..]) {
            *out = activate(activation, gate) * up;
        }
    }
}

fn activate(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
    }
}

/// `x += scale * y`.
pub fn add(x: &mut [f32], y: &[f32], scale: f32) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += scale * y;
    }
}

/// `x *= factor`.
pub fn scale(x: &mut [f32], factor: f32) {
    for x in x {
        *x *= factor;
    }
}

/// `x = cap * tanh(x / cap)`.
pub fn softcap(x: &mut [f32], cap: f32) {
    for x in x {
        *x = cap * (*x / cap).tanh();
    }
}

/// The index of the largest value, the first of equals.
pub fn argmax(x: &[f32]) -> usize {
    let best = x.iter().enumerate().reduce(|best, next| if next.1 > best.1 { next } else { best });
    best.map_or(0, |(i, _)| i)
}

/// A dot product in eight running sums, which is both faster and more exact than one.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 8];
    let (a_chunks, b_chunks) = (a.chunks_exact(8), b.chunks_exact(8));
    let tail: f32 = a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a_chunks.zip(b_chunks) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    sums.iter().sum::<f32>() + tail
}
