// The tiles of matmul.wgsl in f16, which ends at 65504 and loses digits below 2^-14. No model promises to stay within:
// the x of a token and a row of the weight are multiplied by a power of two of their own on the way into the tiles, and
// the sums, in f32, divided by both.

alias Tile4 = vec4<f16>;

var<workgroup> bounds: array<f32, THREADS>;
var<workgroup> x_factors: array<f32, TOKENS>;
var<workgroup> w_factors: array<f32, ROWS>;

// The power of two that brings values of at most `bound` below 2^15.
fn factor(bound: f32) -> f32 {
    let exponent = (bitcast<u32>(bound) >> 23u) & 255u;
    // 2^(14 - (exponent - 127)), kept among the normal numbers.
    return bitcast<f32>(min(268u - exponent, 254u) << 23u);
}

// The largest of the `count` bounds from `first` on.
fn largest_bound(first: u32, count: u32) -> f32 {
    var bound = 0.0;
    for (var i = 0u; i < count; i++) {
        bound = max(bound, bounds[first + i]);
    }
    return bound;
}

// Finds the factors of the workgroup's tokens and rows; every token or row is looked through by several threads.
fn prepare(first_token: u32, tokens: u32, first_row: u32, lane: u32) {
    let per_token = THREADS / TOKENS;
    let t = first_token + lane / per_token;
    var bound = 0.0;
    if t < tokens {
        for (var k = lane % per_token; k < args.columns; k += per_token) {
            bound = max(bound, abs(x_at(t * args.columns + k)));
        }
    }
    bounds[lane] = bound;
    workgroupBarrier();
    if lane < TOKENS {
        x_factors[lane] = factor(largest_bound(lane * per_token, per_token));
    }
    workgroupBarrier();

    let per_row = THREADS / ROWS;
    let row = first_row + lane / per_row;
    bound = 0.0;
    if row < args.rows {
        let words = words_per_row(matrix());
        for (var w = (lane % per_row) * WORDS_PER_GROUP; w < words; w += per_row * WORDS_PER_GROUP) {
            bound = max(bound, abs(scale_of(matrix(), row, w)));
        }
    }
    bounds[lane] = bound;
    workgroupBarrier();
    if lane < ROWS {
        // The largest code.
        let most = f32(1u << (BITS - 1u));
        w_factors[lane] = factor(most * largest_bound(lane * per_row, per_row));
    }
    workgroupBarrier();
}

fn x_factors_of(four: u32) -> vec4<f32> {
    let i = 4u * four;
    return vec4<f32>(x_factors[i], x_factors[i + 1u], x_factors[i + 2u], x_factors[i + 3u]);
}

fn w_factors_of(four: u32) -> vec4<f32> {
    let i = 4u * four;
    return vec4<f32>(w_factors[i], w_factors[i + 1u], w_factors[i + 2u], w_factors[i + 3u]);
}

fn x_to_tile(four: u32, x: vec4<f32>) -> Tile4 {
    return Tile4(x * x_factors_of(four));
}

fn w_to_tile(four: u32, w: vec4<f32>) -> Tile4 {
    return Tile4(w * w_factors_of(four));
}

// One division after the other: the product of both factors may be out of range.
fn from_tiles(token: u32, four: u32, sums: vec4<f32>) -> vec4<f32> {
    return sums / x_factors[token] / w_factors_of(four);
}
