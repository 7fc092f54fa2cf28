// Softmax attention of few queries: the positions that they see are divided among workgroups, each of which leaves its
// highest score, the sum of its exponentials and their mix of values for attend_merge.wgsl to join (split-K attention,
// Dao et al. 2023). Four threads share a key, so that neighbours read side by side.
//
// With TURN, what comes before in a plan is done on the way, for a call of one token: queries and the new key are
// normed and turned, and key and value stored. No workgroup reads what another one stores here.

override TURN: bool;
// Keys of a block, one a thread.
override BLOCK: u32 = THREADS;
const WIDEST: u32 = 512u;
const WIDEST_FOURS: u32 = WIDEST / 4u;
// Fours of the mixed values that a thread keeps: enough for the fewest threads.
const MOST_SUMS: u32 = 2u;
// Threads that mix the same four values, for every so many keys one.
override FOURS: u32 = THREADS / 4u;

struct Args {
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    q_offset: u32,
    k_offset: u32,
    v_offset: u32,
    // Of q, k and v
    stride: u32,
    // 0: every earlier position is seen.
    window: u32,
    scale: f32,
    // 0: scores stay as they are.
    softcap: f32,
    // Positions that a workgroup has at least, and the most that share them.
    share: u32,
    most_shares: u32,
    pairs: u32,
    neighbours: u32,
    // Whether q, k and v are normed: bits 1, 2 and 4; v without a weight.
    normed: u32,
    q_eps: f32,
    k_eps: f32,
    v_eps: f32,
}

@group(0) @binding(1) var<uniform> args: Args;
// [T, stride / 4] fours: queries, and with TURN keys and values, in columns from their offsets on
@group(0) @binding(2) var<storage, read> qkv: array<vec4<f32>>;
// [first + T, pairs] of (cos, sin), those of this call from row live.first on; or anything without TURN
@group(0) @binding(3) var<storage, read> turns: array<vec2<f32>>;
// [head_dim], or anything
@group(0) @binding(4) var<storage, read> q_norm: array<f32>;
// [head_dim], or anything
@group(0) @binding(5) var<storage, read> k_norm: array<f32>;
// [positions, kv_heads, head_dim / 4] fours, a ring: position p is in row p % positions.
@group(0) @binding(6) var<storage, read_write> keys: array<vec4<f32>>;
// [positions, kv_heads, head_dim / 4], the same
@group(0) @binding(7) var<storage, read_write> values: array<vec4<f32>>;
// [T, heads, shares, head_dim + 2]: the mix, the highest score and the sum
@group(0) @binding(8) var<storage, read_write> parts: array<f32>;

// As they are projected
var<workgroup> raw: array<vec4<f32>, WIDEST_FOURS>;
// Normed, turned and scaled
var<workgroup> query: array<vec4<f32>, WIDEST_FOURS>;
// Of the token itself, with TURN
var<workgroup> own_key: array<vec4<f32>, WIDEST_FOURS>;
var<workgroup> own_value: array<vec4<f32>, WIDEST_FOURS>;
// [BLOCK, 4]: a key's score in parts
override SCORES: u32 = 4u * BLOCK;
var<workgroup> scores: array<f32, SCORES>;
// [BLOCK] exponentials
var<workgroup> weights: array<f32, BLOCK>;
// [THREADS]
var<workgroup> mixes: array<vec4<f32>, THREADS>;
var<workgroup> partial: array<f32, THREADS>;
var<workgroup> eighths: array<f32, 8>;

fn load_raw(lane: u32, start: u32) {
    workgroupBarrier();
    for (var i = lane; i < args.head_dim / 4u; i += THREADS) {
        raw[i] = qkv[start / 4u + i];
    }
    workgroupBarrier();
}

// What `raw` is multiplied by to be normed.
fn norm_factor(eps: f32) -> f32 {
    var squares = 0.0;
    for (var i = 0u; i < args.head_dim / 4u; i++) {
        squares += dot(raw[i], raw[i]);
    }
    return 1.0 / sqrt(squares / f32(args.head_dim) + eps);
}

fn raw_at(d: u32) -> f32 {
    return raw[d / 4u][d % 4u];
}

// Where the pair of value `d` is: its index, whether the value is its second, and the first of both.
struct Pair {
    index: u32,
    is_second: bool,
    first: u32,
    second: u32,
}

fn pair_of(d: u32) -> Pair {
    if args.neighbours == 1u {
        return Pair(d / 2u, d % 2u == 1u, d / 2u * 2u, d / 2u * 2u + 1u);
    }
    let index = d % max(args.pairs, 1u);
    return Pair(index, d >= args.pairs, index, index + args.pairs);
}

fn turned(d: u32, first: f32, second: f32) -> f32 {
    let pair = pair_of(d);
    let turn = turns[live.first * args.pairs + pair.index];
    if pair.is_second {
        return second * turn.x + first * turn.y;
    }
    return first * turn.x - second * turn.y;
}

fn query_at(d: u32, factor: f32) -> f32 {
    var a = raw_at(d) * factor;
    if (args.normed & 1u) != 0u {
        a *= q_norm[d];
    }
    return a;
}

fn key_at(d: u32, factor: f32) -> f32 {
    var a = raw_at(d) * factor;
    if (args.normed & 2u) != 0u {
        a *= k_norm[d];
    }
    return a;
}

fn make_query(lane: u32, start: u32) {
    load_raw(lane, start);
    var factor = args.scale;
    if TURN && (args.normed & 1u) != 0u {
        factor *= norm_factor(args.q_eps);
    }
    for (var i = lane; i < args.head_dim / 4u; i += THREADS) {
        var four = raw[i] * factor;
        if TURN {
            for (var j = 0u; j < 4u; j++) {
                let d = 4u * i + j;
                if d < 2u * args.pairs {
                    let pair = pair_of(d);
                    four[j] = turned(d, query_at(pair.first, factor), query_at(pair.second, factor));
                } else {
                    four[j] = query_at(d, factor);
                }
            }
        }
        query[i] = four;
    }
}

fn make_own(lane: u32, kv_head: u32) {
    load_raw(lane, args.k_offset + kv_head * args.head_dim);
    var factor = 1.0;
    if (args.normed & 2u) != 0u {
        factor = norm_factor(args.k_eps);
    }
    for (var i = lane; i < args.head_dim / 4u; i += THREADS) {
        var four = vec4<f32>();
        for (var j = 0u; j < 4u; j++) {
            let d = 4u * i + j;
            if d < 2u * args.pairs {
                let pair = pair_of(d);
                four[j] = turned(d, key_at(pair.first, factor), key_at(pair.second, factor));
            } else {
                four[j] = key_at(d, factor);
            }
        }
        own_key[i] = four;
    }
    load_raw(lane, args.v_offset + kv_head * args.head_dim);
    factor = 1.0;
    if (args.normed & 4u) != 0u {
        factor = norm_factor(args.v_eps);
    }
    for (var i = lane; i < args.head_dim / 4u; i += THREADS) {
        own_value[i] = raw[i] * factor;
    }
}

// The largest of all threads' values. Between two calls there is a barrier.
fn largest(lane: u32, value: f32) -> f32 {
    partial[lane] = value;
    workgroupBarrier();
    if lane < 8u {
        var most = partial[lane];
        for (var i = lane + 8u; i < THREADS; i += 8u) {
            most = max(most, partial[i]);
        }
        eighths[lane] = most;
    }
    workgroupBarrier();
    var most = eighths[0];
    for (var i = 1u; i < 8u; i++) {
        most = max(most, eighths[i]);
    }
    return most;
}

@compute @workgroup_size(THREADS)
fn attend(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    // `Spread` in kernels/mod.rs has the same number of shares.
    var most_seen = live.past + live.tokens;
    if args.window > 0u {
        most_seen = min(most_seen, args.window);
    }
    let shares = clamp((most_seen + args.share - 1u) / args.share, 1u, args.most_shares);
    let index = unit(group, groups);
    let share = index % shares;
    let head = index / shares % args.heads;
    let t = index / shares / args.heads;
    if t >= live.tokens {
        return;
    }
    let width = args.head_dim / 4u;
    let kv_stride = args.kv_heads * width;
    let positions = arrayLength(&keys) / kv_stride;
    let heads_per_kv = args.heads / args.kv_heads;
    let kv_head = head / heads_per_kv;
    let kv_start = kv_head * width;

    // Positions first..end are seen; the last of them is the query's own.
    let end = live.past + t + 1u;
    let own = end - 1u;
    var first = 0u;
    if args.window > 0u {
        first = end - min(end, args.window);
    }
    let each = (((end - first) + shares - 1u) / shares + BLOCK - 1u) / BLOCK * BLOCK;
    let start = first + share * each;
    let stop = min(start + each, end);

    make_query(lane, t * args.stride + args.q_offset + head * args.head_dim);
    let has_own = TURN && start < stop && stop == end;
    if has_own {
        make_own(lane, kv_head);
        workgroupBarrier();
        if head % heads_per_kv == 0u {
            let row = own % positions * kv_stride + kv_start;
            for (var i = lane; i < width; i += THREADS) {
                keys[row + i] = own_key[i];
                values[row + i] = own_value[i];
            }
        }
    }
    workgroupBarrier();

    // Finite, because WGSL promises nothing about infinities.
    var highest = -1e30;
    // Of the exponentials of this thread's keys.
    var total = 0.0;
    // Threads are dealt out to fours of the mix; each takes every `teams`th key.
    let teams = max(THREADS / width, 1u);
    let team = lane / width;
    var sums = array<vec4<f32>, MOST_SUMS>();
    for (var base = start; base < stop; base += BLOCK) {
        // Four threads a key.
        let part = lane % 4u;
        for (var i = lane / 4u; i < BLOCK; i += FOURS) {
            let position = base + i;
            var score = 0.0;
            if position < stop {
                if has_own && position == own {
                    for (var d = part; d < width; d += 4u) {
                        score += dot(query[d], own_key[d]);
                    }
                } else {
                    let row = position % positions * kv_stride + kv_start;
                    for (var d = part; d < width; d += 4u) {
                        score += dot(query[d], keys[row + d]);
                    }
                }
            }
            scores[4u * i + part] = score;
        }
        workgroupBarrier();
        let count = min(BLOCK, stop - base);
        var score = -1e30;
        if lane < count {
            score = scores[4u * lane] + scores[4u * lane + 1u] + scores[4u * lane + 2u] + scores[4u * lane + 3u];
            if args.softcap > 0.0 {
                score = softcapped(score, args.softcap);
            }
        }
        let new_highest = max(highest, largest(lane, score));
        let fade = exp(highest - new_highest);
        var weight = 0.0;
        if lane < count {
            weight = exp(score - new_highest);
        }
        weights[lane] = weight;
        total = total * fade + weight;
        workgroupBarrier();
        let base_row = base % positions;
        for (var i = 0u; i < MOST_SUMS; i++) {
            let four = lane % width + i * THREADS;
            sums[i] *= fade;
            if team < teams && four < width {
                for (var j = team; j < count; j += teams) {
                    // No more are seen than the ring has, so it wraps once at most.
                    let row = base_row + j;
                    let wrapped = select(row, row - positions, row >= positions);
                    if has_own && base + j == own {
                        sums[i] += weights[j] * own_value[four];
                    } else {
                        sums[i] += weights[j] * values[wrapped * kv_stride + kv_start + four];
                    }
                }
            }
        }
        highest = new_highest;
        workgroupBarrier();
    }

    let out = ((t * args.heads + head) * shares + share) * (args.head_dim + 2u);
    partial[lane] = total;
    workgroupBarrier();
    if lane < 8u {
        var sum = 0.0;
        for (var i = lane; i < THREADS; i += 8u) {
            sum += partial[i];
        }
        eighths[lane] = sum;
    }
    for (var i = 0u; i < MOST_SUMS; i++) {
        workgroupBarrier();
        mixes[lane] = sums[i];
        workgroupBarrier();
        let four = lane + i * THREADS;
        if lane < width && four < width {
            var sum = mixes[lane];
            for (var k = 1u; k < teams; k++) {
                sum += mixes[lane + k * width];
            }
            for (var j = 0u; j < 4u; j++) {
                parts[out + 4u * four + j] = sum[j];
            }
        }
    }
    if lane == 0u {
        var sum = 0.0;
        for (var i = 0u; i < 8u; i++) {
            sum += eighths[i];
        }
        parts[out + args.head_dim] = highest;
        parts[out + args.head_dim + 1u] = sum;
    }
}
