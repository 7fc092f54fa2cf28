// Softmax attention of few queries: the positions that they see are divided among workgroups, each of which leaves its
// highest score, the sum of its exponentials and their mix of values for attend_merge.wgsl to join (split-K attention,
// Dao et al. 2023). Four threads share a key, so that neighbours read side by side.
//
// With TURN, what comes before in a plan is done on the way, for a call of one token: queries and the new key are
// normed and turned, and key and value stored. Workgroups that read that row of the cache meanwhile make nothing of it.

override TURN: bool;
// Keys of a block: half as many as threads, so that each does little before the next block.
override BLOCK: u32 = THREADS / 2u;
// Fours of the mixed values that a thread keeps: enough for the fewest threads.
const MOST_SUMS: u32 = 2u;
// Keys that are scored at a time, by four threads each.
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

// Fours of a head.
override WIDTH: u32;
// Threads that mix the same four values, for every so many keys one.
override TEAMS: u32 = max(THREADS / WIDTH, 1u);

// Of the head: query, key and value as they are projected
var<workgroup> raw_query: array<vec4<f32>, WIDTH>;
var<workgroup> raw_key: array<vec4<f32>, WIDTH>;
// Normed, turned and scaled
var<workgroup> query: array<vec4<f32>, WIDTH>;
// Of the token itself, with TURN
var<workgroup> own_key: array<vec4<f32>, WIDTH>;
var<workgroup> own_value: array<vec4<f32>, WIDTH>;
// [BLOCK, 4]: a key's score in parts
override SCORES: u32 = 4u * BLOCK;
var<workgroup> scores: array<f32, SCORES>;
// [BLOCK] exponentials
var<workgroup> weights: array<f32, BLOCK>;
// [THREADS]
var<workgroup> mixes: array<vec4<f32>, THREADS>;
var<workgroup> partial: array<f32, THREADS>;
var<workgroup> eighths: array<f32, 8>;

// Where the pair of value `d` is: its index, whether the value is its second, and both.
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
    let is_second = d >= args.pairs;
    let index = select(d, d - args.pairs, is_second);
    return Pair(index, is_second, index, index + args.pairs);
}

fn turn_of(d: u32) -> vec2<f32> {
    return turns[live.first * args.pairs + pair_of(d).index];
}

fn turned(d: u32, turn: vec2<f32>, first: f32, second: f32) -> f32 {
    if pair_of(d).is_second {
        return second * turn.x + first * turn.y;
    }
    return first * turn.x - second * turn.y;
}

fn raw_query_at(d: u32) -> f32 {
    var a = raw_query[d / 4u][d % 4u];
    if (args.normed & 1u) != 0u {
        a *= q_norm[d];
    }
    return a;
}

fn raw_key_at(d: u32) -> f32 {
    var a = raw_key[d / 4u][d % 4u];
    if (args.normed & 2u) != 0u {
        a *= k_norm[d];
    }
    return a;
}

// What values with this sum of squares are multiplied by to be normed.
fn norm_factor(squares: f32, eps: f32) -> f32 {
    return 1.0 / sqrt(squares / f32(args.head_dim) + eps);
}

// Four values of the query and of the token's own key, from the raw ones of all threads.
fn turn_four(i: u32) {
    var q_factor = args.scale;
    var k_factor = 1.0;
    if (args.normed & 1u) != 0u {
        var squares = 0.0;
        for (var j = 0u; j < WIDTH; j++) {
            squares += dot(raw_query[j], raw_query[j]);
        }
        q_factor *= norm_factor(squares, args.q_eps);
    }
    if (args.normed & 2u) != 0u {
        var squares = 0.0;
        for (var j = 0u; j < WIDTH; j++) {
            squares += dot(raw_key[j], raw_key[j]);
        }
        k_factor = norm_factor(squares, args.k_eps);
    }
    if (args.normed & 4u) != 0u {
        var squares = 0.0;
        for (var j = 0u; j < WIDTH; j++) {
            squares += dot(own_value[j], own_value[j]);
        }
        // Kept aside: others still read what is there.
        mixes[i % THREADS] = own_value[i] * norm_factor(squares, args.v_eps);
    }
    var q_four = vec4<f32>();
    var k_four = vec4<f32>();
    for (var j = 0u; j < 4u; j++) {
        let d = 4u * i + j;
        if d < 2u * args.pairs {
            let turn = turn_of(d);
            let pair = pair_of(d);
            q_four[j] = turned(d, turn, raw_query_at(pair.first), raw_query_at(pair.second));
            k_four[j] = turned(d, turn, raw_key_at(pair.first), raw_key_at(pair.second));
        } else {
            q_four[j] = raw_query_at(d);
            k_four[j] = raw_key_at(d);
        }
    }
    query[i] = q_four * q_factor;
    own_key[i] = k_four * k_factor;
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

// The weight of the block's key `i` that is in the cache.
fn weight_of(i: u32, count: u32, has_own: bool, base: u32, own: u32) -> f32 {
    let weight = weights[min(i, BLOCK - 1u)];
    return select(0.0, weight, i < count && !(has_own && base + i == own));
}

// What stands where nothing counts may be no number, if an earlier text left that there.
fn weighted(weight: f32, value: vec4<f32>) -> vec4<f32> {
    return select(vec4<f32>(), weight * value, weight != 0.0);
}

@compute @workgroup_size(THREADS)
fn attend(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let shares = shares_of(args.window, args.share, args.most_shares);
    let index = unit(group, groups);
    let share = index % shares;
    let head = index / shares % args.heads;
    let t = index / shares / args.heads;
    if t >= live.tokens {
        return;
    }
    let kv_stride = args.kv_heads * WIDTH;
    let positions = arrayLength(&keys) / kv_stride;
    let heads_per_kv = args.heads / args.kv_heads;
    let kv_head = head / heads_per_kv;
    let kv_start = kv_head * WIDTH;

    // Positions first..end are seen; the last of them is the query's own.
    let end = live.past + t + 1u;
    let own = end - 1u;
    let first = first_seen(end, args.window);
    let each = (((end - first) + shares - 1u) / shares + BLOCK - 1u) / BLOCK * BLOCK;
    let start = first + share * each;
    let stop = min(start + each, end);
    let has_own = TURN && start < stop && stop == end;

    let q_start = (t * args.stride + args.q_offset) / 4u + head * WIDTH;
    for (var i = lane; i < WIDTH; i += THREADS) {
        if TURN {
            raw_query[i] = qkv[q_start + i];
            raw_key[i] = qkv[args.k_offset / 4u + kv_start + i];
            own_value[i] = qkv[args.v_offset / 4u + kv_start + i];
        } else {
            query[i] = qkv[q_start + i] * args.scale;
        }
    }
    workgroupBarrier();
    if TURN {
        for (var i = lane; i < WIDTH; i += THREADS) {
            turn_four(i);
        }
        workgroupBarrier();
        // A norm of values is made for heads that have a thread for each four.
        if (args.normed & 4u) != 0u && lane < WIDTH {
            own_value[lane] = mixes[lane];
        }
        workgroupBarrier();
        if has_own && head % heads_per_kv == 0u {
            let row = own % positions * kv_stride + kv_start;
            for (var i = lane; i < WIDTH; i += THREADS) {
                keys[row + i] = own_key[i];
                values[row + i] = own_value[i];
            }
        }
    }

    // Finite, because WGSL promises nothing about infinities.
    var highest = -1e30;
    // Of the exponentials of this thread's keys.
    var total = 0.0;
    // Threads are dealt out to fours of the mix; each takes every TEAMS-th key.
    let team = lane / WIDTH;
    var sums = array<vec4<f32>, MOST_SUMS>();
    for (var base = start; base < stop; base += BLOCK) {
        let count = min(BLOCK, stop - base);
        let base_row = base % positions;
        // Four threads a key. What is beyond the last key is read from the first, so that no load waits for a branch.
        let part = lane % 4u;
        for (var k = 0u; k < BLOCK / FOURS; k++) {
            let i = lane / 4u + k * FOURS;
            let at = row_at(base_row, select(0u, i, i < count), positions) * kv_stride + kv_start;
            var score = 0.0;
            for (var d = 0u; d < WIDTH; d += 4u) {
                if d + part < WIDTH {
                    score += dot(query[d + part], keys[at + d + part]);
                }
            }
            scores[4u * i + part] = score;
        }
        workgroupBarrier();
        var score = -1e30;
        if lane < count {
            score = scores[4u * lane] + scores[4u * lane + 1u] + scores[4u * lane + 2u] + scores[4u * lane + 3u];
            if has_own && base + lane == own {
                score = 0.0;
                for (var d = 0u; d < WIDTH; d++) {
                    score += dot(query[d], own_key[d]);
                }
            }
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
        total = total * fade + weight;
        if lane < BLOCK {
            weights[lane] = weight;
        }
        workgroupBarrier();
        for (var i = 0u; i < MOST_SUMS; i++) {
            let four = lane % WIDTH + i * THREADS;
            if team < TEAMS && four < WIDTH {
                var sum = sums[i] * fade;
                for (var j = team; j < BLOCK; j += 4u * TEAMS) {
                    if j >= count {
                        break;
                    }
                    // Weights of what was not scored are zero, and so is that of the token's own value here.
                    let at = vec4<u32>(j, j + TEAMS, j + 2u * TEAMS, j + 3u * TEAMS);
                    let a = values[row_at(base_row, select(0u, at.x, at.x < count), positions) * kv_stride + kv_start + four];
                    let b = values[row_at(base_row, select(0u, at.y, at.y < count), positions) * kv_stride + kv_start + four];
                    let c = values[row_at(base_row, select(0u, at.z, at.z < count), positions) * kv_stride + kv_start + four];
                    let d = values[row_at(base_row, select(0u, at.w, at.w < count), positions) * kv_stride + kv_start + four];
                    sum += weighted(weight_of(at.x, count, has_own, base, own), a);
                    sum += weighted(weight_of(at.y, count, has_own, base, own), b);
                    sum += weighted(weight_of(at.z, count, has_own, base, own), c);
                    sum += weighted(weight_of(at.w, count, has_own, base, own), d);
                }
                if has_own && team == 0u && own < base + count {
                    sum += weights[own - base] * own_value[four];
                }
                sums[i] = sum;
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
        if lane < WIDTH && four < WIDTH {
            var sum = mixes[lane];
            for (var k = 1u; k < TEAMS; k++) {
                sum += mixes[lane + k * WIDTH];
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
