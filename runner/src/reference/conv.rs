//! Short convolutions in plain f32.

use super::ops::ColumnView;

/// Writes `x * by` to a ring `[positions, width]`, from position `past` on.
pub(super) fn store(
    x: ColumnView<'_>,
    by: ColumnView<'_>,
    width: usize,
    past: usize,
    ring: &mut [f32],
) {
    let positions = ring.len() / width;
    let rows = x.x.chunks(x.width).zip(by.x.chunks(by.width));
    for (t, (xs, bys)) in rows.enumerate() {
        let row = &mut ring[(past + t) % positions * width..][..width];
        for ((out, x), by) in row.iter_mut().zip(&xs[x.offset..]).zip(&bys[by.offset..]) {
            *out = x * by;
        }
    }
}

/// A kernel for each channel.
#[derive(Clone, Copy)]
pub(super) struct Kernels<'a> {
    /// `[width, length]`.
    pub(super) values: &'a [f32],
    /// `[width]`.
    pub(super) bias: Option<&'a [f32]>,
    /// Channels.
    pub(super) width: usize,
}

/// `out[t, c] = gate[t, c] * (bias[c] + sum_j kernel[c, j] * ring[past + t - length + 1 + j, c])`, as if positions before
/// the first were zero.
pub(super) fn convolve(
    ring: &[f32],
    Kernels { values, bias, width }: Kernels<'_>,
    gate: ColumnView<'_>,
    past: usize,
    out: &mut [f32],
) {
    let (length, positions) = (values.len() / width, ring.len() / width);
    let rows = out.chunks_mut(width).zip(gate.x.chunks(gate.width));
    for (t, (out, gates)) in rows.enumerate() {
        for (c, (out, gate)) in out.iter_mut().zip(&gates[gate.offset..]).enumerate() {
            let mut sum = bias.map_or(0.0, |bias| bias[c]);
            for (j, weight) in values[c * length..][..length].iter().enumerate() {
                if let Some(position) = (past + t + 1 + j).checked_sub(length) {
                    sum += weight * ring[position % positions * width + c];
                }
            }
            *out = gate * sum;
        }
    }
}
