// What both matmul kernels bind: out[t, first_row + n] = sum_k x[t, k] * weight[n, k] + bias[first_row + n],
// where the weight [rows, columns] is one piece of the whole.

// [T, columns], in fours
@group(0) @binding(4) var<storage, read> x: array<vec4<f32>>;
// [out_width], or anything where has_bias is 0
@group(0) @binding(5) var<storage, read> bias: array<f32>;
// [T, out_width]
@group(0) @binding(6) var<storage, read_write> out: array<f32>;

fn matrix() -> Matrix {
    return Matrix(args.rows, args.columns);
}

fn x_at(i: u32) -> f32 {
    return x[i / 4u][i % 4u];
}

fn put(t: u32, row: u32, sum: f32) {
    let n = args.first_row + row;
    var y = sum;
    if args.has_bias == 1u {
        y += bias[n];
    }
    out[t * args.out_width + n] = y;
}
