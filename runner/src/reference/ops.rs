//! The operations of a plan in plain f32. Rows are tokens; a matrix `[rows, width]` is a slice, row after row.

use packlight_formats::model::Activation;
use packlight_formats::rope::Pairing;
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

/// How pairs of values are turned.
#[derive(Clone, Copy, Debug)]
pub struct Turning<'a> {
    /// Radians per position, one for each pair; what follows the pairs stays as it is.
    pub inv_freq: &'a [f32],
    /// What pairs are stretched by.
    pub factor: f32,
    pub pairing: Pairing,
    /// Positions before this call.
    pub past: usize,
}

/// Turns the pairs of each head by `(past + t) * inv_freq[i]`.
pub fn rope(x: &mut [f32], view: HeadView, turning: Turning<'_>) {
    let Turning { inv_freq, factor, pairing, past } = turning;
    for (t, head) in view.each_mut(x) {
        for (i, freq) in inv_freq.iter().enumerate() {
            let (sin, cos) = ((past + t) as f32 * freq).sin_cos();
            let (sin, cos) = (sin * factor, cos * factor);
            let [first, second] = pairing.values(i, inv_freq.len());
            let (a, b) = (head[first], head[second]);
            head[first] = a * cos - b * sin;
            head[second] = b * cos + a * sin;
        }
    }
}

/// Writes the heads of each row of `x` to `cache`, `[positions, heads, head_dim]`, a ring, from position `past` on.
pub fn store(x: &[f32], view: HeadView, cache: &mut [f32], past: usize) {
    let size = view.heads * view.head_dim;
    let positions = cache.len() / size;
    for (t, row) in x.chunks(view.width).enumerate() {
        let slot = &mut cache[(past + t) % positions * size..][..size];
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

/// Softmax attention; `keys` and `values` are `[positions, kv_heads, head_dim]`, rings; `out` is `[T, heads * head_dim]`.
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
        let positions = keys.len() / (kv_heads * head_dim);
        let at = |position: usize| {
            let row = position % positions * kv_heads + head / queries_per_key;
            row * head_dim..(row + 1) * head_dim
        };
        let position = params.past + t;
        let first = params.window.map_or(0, |window| (position + 1).saturating_sub(window));
        let mut scores: Vec<f32> =
            (first..=position).map(|j| dot(query, &keys[at(j)]) * params.scale).collect();
        if let Some(cap) = params.softcap {
            softcap(&mut scores, cap);
        }
        softmax(&mut scores);
        out.fill(0.0);
        for (score, j) in scores.iter().zip(first..) {
            for (out, value) in out.iter_mut().zip(&values[at(j)]) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn turned(mut x: Vec<f32>, inv_freq: &[f32], pairing: Pairing, past: usize) -> Vec<f32> {
        let view = HeadView { width: x.len(), offset: 0, heads: 1, head_dim: x.len() };
        rope(&mut x, view, Turning { inv_freq, factor: 1.0, pairing, past });
        x
    }

    fn close(found: &[f32], expected: &[f32]) {
        let mut pairs = found.iter().zip(expected);
        assert!(pairs.all(|(a, b)| (a - b).abs() < 1e-5), "{found:?} {expected:?}");
    }

    /// Row 18 of the behaviours. The numbers are those of `apply_rotary_pos_emb` in transformers' Llama and in its Cohere.
    #[test]
    fn both_ways_of_pairing() {
        let x: Vec<f32> = (1u8..=8).map(f32::from).collect();
        let inv_freq = [1.0, 0.316_227_76, 0.1, 0.031_622_776];
        let halves = [
            -1.695_593, -3.710_386, 0.797_368, 3.224_205, -4.808_843, 5.121_819, 7.573_916,
            8.342_932,
        ];
        let neighbours = [
            -1.272_233, -1.838_865, -1.502_335, 4.768_961, 3.003_561, 7.209_62, 6.210_715, 8.627_11,
        ];
        close(&turned(x.clone(), &inv_freq, Pairing::Halves, 3), &halves);
        close(&turned(x, &inv_freq, Pairing::Neighbours, 3), &neighbours);
    }

    /// Row 9 of the behaviours: pairs `(i, i + 256)` of a head of 512, of which only the first 64 are turned.
    #[test]
    fn what_is_not_turned_stays() {
        let x: Vec<f32> = (0..512u16).map(|i| f32::from(i) / 100.0 + 1.0).collect();
        let mut inv_freq = vec![0.0; 256];
        for (k, freq) in (0u8..).zip(&mut inv_freq[..64]) {
            *freq = 1e6f32.powf(-2.0 * f32::from(k) / 512.0);
        }
        for past in [0, 1, 700] {
            let y = turned(x.clone(), &inv_freq, Pairing::Halves, past);
            for i in (64..256).chain(320..512) {
                assert_eq!(y[i].to_bits(), x[i].to_bits(), "value {i}");
            }
            let (sin, cos) = (past as f32).sin_cos();
            close(&[y[0], y[256]], &[x[0] * cos - x[256] * sin, x[256] * cos + x[0] * sin]);
            let (sin, cos) = (past as f32 * 1e6f32.powf(-126.0 / 512.0)).sin_cos();
            close(&[y[63], y[319]], &[x[63] * cos - x[319] * sin, x[319] * cos + x[63] * sin]);
        }
    }
}
