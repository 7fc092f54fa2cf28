// Few tokens, and rows of whole groups of 32 codes of 4 bits: a thread takes a group of four rows at a time, four words
// of each in one load. x goes through workgroup memory, once for all rows of the workgroup. What comes before and after
// in a plan is computed on the way:
//   NORM: x is RMS-normed first. Its root mean square is a factor of every sum, so it may come last.
//   GATED: out[t, n] = act(sum of row gate_row + n) * (sum of row up_row + n).
//   RESIDUAL: out[t, n] += scale * sum.

// The code that stands for zero.
override ZERO: u32;
// Type of the scales: 0: f16, 1: bf16, two to a word; 2: f32.
override SCALES: u32;
override NORM: bool;
override GATED: bool;
override RESIDUAL: bool;
// Threads that share the groups of a row: a power of two from 8 on.
override LANES: u32;
// A row's group has eight fours of x; one more, so that neighbouring threads read from different banks.
const PITCH: u32 = 9u;
override X_TILE: u32 = LANES * PITCH;

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
}

@group(0) @binding(1) var<uniform> args: Args;
// [rows, columns / 32] groups of four words
@group(0) @binding(2) var<storage, read> codes: array<vec4<u32>>;
// [rows, columns / 32]
@group(0) @binding(3) var<storage, read> scales: array<u32>;
// [T, columns / 4] fours
@group(0) @binding(4) var<storage, read> x: array<vec4<f32>>;
// [columns / 4] fours, or anything without NORM
@group(0) @binding(5) var<storage, read> norm: array<vec4<f32>>;
// One for every row of the whole weight, or anything where has_bias is 0
@group(0) @binding(6) var<storage, read> bias: array<f32>;
// [T, out_width]
@group(0) @binding(7) var<storage, read_write> out: array<f32>;

// [LANES] groups of x
var<workgroup> x_tile: array<vec4<f32>, X_TILE>;

// The groups of four rows that a thread takes at once: codes and the words that have their scales.
struct Groups {
    a: vec4<u32>,
    b: vec4<u32>,
    c: vec4<u32>,
    d: vec4<u32>,
    scales: vec4<u32>,
}

fn scale_word(i: u32) -> u32 {
    if SCALES == 2u {
        return scales[i];
    }
    return scales[i / 2u];
}

fn scale_in(word: u32, i: u32) -> f32 {
    if SCALES == 2u {
        return bitcast<f32>(word);
    }
    return half_of(word, i % 2u, SCALES == 1u);
}

// Group `i` of the rows that start at these groups; beyond a row's end anything that can be read.
fn groups_at(starts: vec4<u32>, i: u32, groups: u32) -> Groups {
    let at = starts + min(i, groups - 1u);
    return Groups(
        codes[at.x],
        codes[at.y],
        codes[at.z],
        codes[at.w],
        vec4<u32>(scale_word(at.x), scale_word(at.y), scale_word(at.z), scale_word(at.w)),
    );
}

// Brings `LANES` groups of x from group `first` on into the tile, zeros beyond the end, and returns the squares of those
// that this thread has brought.
fn fill_tile(x_start: u32, first: u32, thread: u32) -> f32 {
    let fours = args.columns / 4u;
    var squares = 0.0;
    for (var i = thread; i < LANES * 8u; i += THREADS) {
        let four = first * 8u + i;
        var value = vec4<f32>();
        if four < fours {
            value = x[x_start + four];
            if NORM {
                squares += dot(value, value);
                value *= norm[four];
            }
        }
        x_tile[i / 8u * PITCH + i % 8u] = value;
    }
    return squares;
}

fn bytes_of(word: u32) -> vec4<f32> {
    return vec4<f32>(vec4<u32>(word, word >> 8u, word >> 16u, word >> 24u) & vec4<u32>(255u));
}

// Codes of a word times x, whose values at even places come first.
fn word_dot(word: u32, even: vec4<f32>, odd: vec4<f32>) -> f32 {
    return dot(bytes_of(word & 0x0f0f0f0fu), even) + dot(bytes_of((word >> 4u) & 0x0f0f0f0fu), odd);
}

@compute @workgroup_size(THREADS)
fn matvec(thread: Thread) {
    let per_team = select(4u, 2u, GATED);
    let per_workgroup = THREADS / LANES * per_team;
    let blocks = (args.outputs + per_workgroup - 1u) / per_workgroup;
    let block = unit(thread.group, thread.groups);
    let t = block / blocks;
    if t >= live_rows(args.rows_of) {
        return;
    }
    let lane = thread.lane % LANES;
    let first = block % blocks * per_workgroup + thread.lane / LANES * per_team;
    var rows = vec4<u32>(first, first + 1u, first + 2u, first + 3u);
    if GATED {
        rows = vec4<u32>(args.gate_row, args.gate_row, args.up_row, args.up_row)
            + vec4<u32>(first, first + 1u, first, first + 1u);
    }
    let groups = args.columns / 32u;
    let starts = min(rows, vec4<u32>(args.rows - 1u)) * groups;
    let x_row = live_rows(args.from_rows_of) - live_rows(args.rows_of) + t;
    let x_start = x_row * args.columns / 4u;

    var sums = vec4<f32>();
    var squares = 0.0;
    // Weights are under way before they are needed.
    var next = groups_at(starts, lane, groups);
    for (var first_group = 0u; first_group < groups; first_group += LANES) {
        squares += fill_tile(x_start, first_group, thread.lane);
        workgroupBarrier();
        let here = next;
        let group = first_group + lane;
        if first_group + LANES < groups {
            next = groups_at(starts, group + LANES, groups);
        }
        // Codes count from ZERO: sum (code - ZERO) * x = sum code * x - ZERO * sum x.
        var dots = vec4<f32>();
        var x_sum = 0.0;
        for (var i = 0u; i < 4u; i++) {
            let left = x_tile[lane * PITCH + 2u * i];
            let right = x_tile[lane * PITCH + 2u * i + 1u];
            let even = vec4<f32>(left.xz, right.xz);
            let odd = vec4<f32>(left.yw, right.yw);
            x_sum += dot(even + odd, vec4<f32>(1.0));
            dots += vec4<f32>(
                word_dot(here.a[i], even, odd),
                word_dot(here.b[i], even, odd),
                word_dot(here.c[i], even, odd),
                word_dot(here.d[i], even, odd),
            );
        }
        let at = starts + group;
        let scale = vec4<f32>(
            scale_in(here.scales.x, at.x),
            scale_in(here.scales.y, at.y),
            scale_in(here.scales.z, at.z),
            scale_in(here.scales.w, at.w),
        );
        // A thread beyond the end of the row has zeros for x, but what it has for a scale may be no number.
        if group < groups {
            sums += scale * (dots - f32(ZERO) * x_sum);
        }
        workgroupBarrier();
    }

    let reduced = reduce(thread, sums, squares);
    if lane != 0u {
        return;
    }
    var y = reduced.sums;
    if NORM {
        y *= 1.0 / sqrt(reduced.squares / f32(args.columns) + args.eps);
    }
    if args.has_bias == 1u {
        for (var i = 0u; i < 4u; i++) {
            y[i] += bias[args.first_output + min(rows[i], args.rows - 1u)];
        }
    }
    if GATED {
        let gates = vec2<f32>(activated(args.activation, y.x), activated(args.activation, y.y));
        y = vec4<f32>(gates * y.zw, 0.0, 0.0);
    }
    let out_start = t * args.out_width + args.first_output;
    for (var i = 0u; i < per_team; i++) {
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
