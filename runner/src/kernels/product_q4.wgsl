// What the kernels of a matrix times few tokens are given, and what they make of their sums, for rows of whole groups
// of 32 codes of 4 bits. What comes before and after in a plan is computed on the way:
//   NORM: x is RMS-normed first. Its root mean square is a factor of every sum, so it may come last.
//   GATED: out[t, n] = act(sum of row gate_row + n) * (sum of row up_row + n).
//   RESIDUAL: out[t, n] += scale * sum.

override NORM: bool;
override GATED: bool;
override RESIDUAL: bool;

struct Args {
    // x is row (rows of `from_rows_of`) - (rows of `rows_of`) + t: out may have a row for each output only.
    from_rows_of: u32,
    rows_of: u32,
    columns: u32,
    // Rows of the piece of the weight that is bound.
    rows: u32,
    // Values of out that this call makes, and the column of the first.
    outputs: u32,
    first_output: u32,
    out_width: u32,
    gate_row: u32,
    up_row: u32,
    has_bias: u32,
    // As in activation.wgsl.
    activation: u32,
    eps: f32,
    scale: f32,
    // Times that a workgroup takes rows, where it brings x once for many.
    passes: u32,
}

@group(0) @binding(1) var<uniform> args: Args;
// [T, columns / 4] fours
@group(0) @binding(4) var<storage, read> x: array<vec4<f32>>;
// [columns / 4] fours, or anything without NORM
@group(0) @binding(5) var<storage, read> norm: array<vec4<f32>>;
// One for every row of the whole weight, or anything where has_bias is 0
@group(0) @binding(6) var<storage, read> bias: array<f32>;
// [T, out_width]
@group(0) @binding(7) var<storage, read_write> out: array<f32>;

// The rows that a team sums for the values of out from `first` on.
fn rows_of_team(first: u32) -> vec4<u32> {
    if GATED {
        return vec4<u32>(args.gate_row, args.gate_row, args.up_row, args.up_row)
            + vec4<u32>(first, first + 1u, first, first + 1u);
    }
    return vec4<u32>(first, first + 1u, first + 2u, first + 3u);
}

// Makes values of out from the sums of the rows of a team.
fn finish(t: u32, first: u32, sums: vec4<f32>) {
    var y = sums;
    if args.has_bias == 1u {
        let rows = rows_of_team(first);
        for (var i = 0u; i < 4u; i++) {
            y[i] += bias[args.first_output + min(rows[i], args.rows - 1u)];
        }
    }
    if GATED {
        let gates = vec2<f32>(activated(args.activation, y.x), activated(args.activation, y.y));
        y = vec4<f32>(gates * y.zw, 0.0, 0.0);
    }
    let out_start = t * args.out_width + args.first_output;
    for (var i = 0u; i < select(4u, 2u, GATED); i++) {
        let n = first + i;
        if n < args.outputs {
            var value = y[i];
            if RESIDUAL {
                value = out[out_start + n] + args.scale * value;
            }
            out[out_start + n] = value;
        }
    }
}
