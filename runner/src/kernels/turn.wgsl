// What is done with the queries, keys and values of a call before it attends: norms, rotation and storing. A thread has
// one head of one token for itself.

struct Args {
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    q_offset: u32,
    k_offset: u32,
    v_offset: u32,
    stride: u32,
    pairs: u32,
    // From one pair to the next, and between the values of one: 1 and `pairs`, or 2 and 1.
    step: u32,
    gap: u32,
    // Whether q, k and v are normed: bits 1, 2 and 4; v without a weight.
    normed: u32,
    q_eps: f32,
    k_eps: f32,
    v_eps: f32,
}

@group(0) @binding(1) var<uniform> args: Args;
// [first + T, pairs] of (cos, sin), those of this call from row live.first on; or anything without pairs
@group(0) @binding(2) var<storage, read> turns: array<vec2<f32>>;
// [head_dim], or anything
@group(0) @binding(3) var<storage, read> q_norm: array<f32>;
// [head_dim], or anything
@group(0) @binding(4) var<storage, read> k_norm: array<f32>;
// [T, stride]: queries, keys and values in columns from their offsets on. Queries are changed in place.
@group(0) @binding(5) var<storage, read_write> qkv: array<f32>;
// [positions, kv_heads, head_dim], a ring: position p is in row p % positions.
@group(0) @binding(6) var<storage, read_write> keys: array<f32>;
// [positions, kv_heads, head_dim], the same
@group(0) @binding(7) var<storage, read_write> values: array<f32>;

const QUERY: u32 = 0u;
const KEY: u32 = 1u;
const VALUE: u32 = 2u;

fn weight_of(kind: u32, d: u32) -> f32 {
    if kind == QUERY && (args.normed & 1u) != 0u {
        return q_norm[d];
    }
    if kind == KEY && (args.normed & 2u) != 0u {
        return k_norm[d];
    }
    return 1.0;
}

fn store(kind: u32, i: u32, value: f32) {
    if kind == QUERY {
        qkv[i] = value;
    } else if kind == KEY {
        keys[i] = value;
    } else {
        values[i] = value;
    }
}

@compute @workgroup_size(THREADS)
fn turn(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let all_heads = args.heads + 2u * args.kv_heads;
    let at = cell(unit(group, groups), lane, all_heads);
    if at.row >= live.tokens || at.column >= all_heads {
        return;
    }
    var kind = QUERY;
    var head = at.column;
    var offset = args.q_offset;
    var eps = args.q_eps;
    if at.column >= args.heads + args.kv_heads {
        kind = VALUE;
        head = at.column - args.heads - args.kv_heads;
        offset = args.v_offset;
        eps = args.v_eps;
    } else if at.column >= args.heads {
        kind = KEY;
        head = at.column - args.heads;
        offset = args.k_offset;
        eps = args.k_eps;
    }
    let start = at.row * args.stride + offset + head * args.head_dim;
    var target_start = start;
    if kind != QUERY {
        let positions = arrayLength(&keys) / (args.kv_heads * args.head_dim);
        let position = (live.past + at.row) % positions;
        target_start = (position * args.kv_heads + head) * args.head_dim;
    }
    var factor = 1.0;
    if (args.normed & (1u << kind)) != 0u {
        var squares = 0.0;
        for (var d = 0u; d < args.head_dim; d++) {
            squares += qkv[start + d] * qkv[start + d];
        }
        factor = 1.0 / sqrt(squares / f32(args.head_dim) + eps);
    }
    let pairs = select(args.pairs, 0u, kind == VALUE);
    for (var i = 0u; i < pairs; i++) {
        let first = i * args.step;
        let second = first + args.gap;
        let turn = turns[(live.first + at.row) * args.pairs + i];
        let a = qkv[start + first] * factor * weight_of(kind, first);
        let b = qkv[start + second] * factor * weight_of(kind, second);
        store(kind, target_start + first, a * turn.x - b * turn.y);
        store(kind, target_start + second, b * turn.x + a * turn.y);
    }
    for (var d = 2u * pairs; d < args.head_dim; d++) {
        store(kind, target_start + d, qkv[start + d] * factor * weight_of(kind, d));
    }
}
