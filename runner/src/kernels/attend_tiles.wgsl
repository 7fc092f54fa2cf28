// Softmax attention of many queries: a workgroup has 32 queries of one head and walks over tiles of 32 keys with a
// running maximum and sum (Dao et al. 2022). What a tile needs goes through workgroup memory, 32 values of every head at
// a time. Each of 16 x 16 threads scores 2 queries by 2 keys, and mixes fours of values for 2 queries.

const QUERIES: u32 = 32u;
const KEYS: u32 = 32u;
// Fours of a head that are in workgroup memory at once, and one more, so that neighbours read from different banks.
const DEPTH: u32 = 8u;
const PITCH: u32 = 9u;
const VALUE_FOURS: u32 = 16u;
const TILE: u32 = 2u * QUERIES * PITCH;
const K_TILE: u32 = QUERIES * PITCH;
// Fours of a head that a thread mixes: enough for heads of 256.
const MOST_SUMS: u32 = 4u;
const SCORE_PITCH: u32 = KEYS + 1u;

// [T, stride / 4] fours, queries in columns offset.. of heads * head_dim
@group(0) @binding(2) var<storage, read> q: array<vec4<f32>>;
// [positions, kv_heads, head_dim / 4], a ring: position p is in row p % positions.
@group(0) @binding(3) var<storage, read> keys: array<vec4<f32>>;
// [positions, kv_heads, head_dim / 4], the same
@group(0) @binding(4) var<storage, read> values: array<vec4<f32>>;
// [T, heads, head_dim / 4]
@group(0) @binding(5) var<storage, read_write> out: array<vec4<f32>>;

// [QUERIES, DEPTH] and then [KEYS, DEPTH], padded; or [KEYS, VALUE_FOURS]
var<workgroup> tile: array<vec4<f32>, TILE>;
// [QUERIES, KEYS], padded: scores, then their exponentials
var<workgroup> scores: array<f32, QUERIES * SCORE_PITCH>;
// [QUERIES, 8]: the largest of each eighth of the scores of a query; in the end the sums of the exponentials
var<workgroup> eighths: array<f32, THREADS>;

@compute @workgroup_size(THREADS)
fn attend(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = unit(group, groups);
    let head = index % args.heads;
    let first_query = index / args.heads * QUERIES;
    if first_query >= live.tokens {
        return;
    }
    let width = args.head_dim / 4u;
    let kv_stride = args.kv_heads * width;
    let positions = arrayLength(&keys) / kv_stride;
    let kv_start = head / (args.heads / args.kv_heads) * width;
    let q_start = args.offset / 4u + head * width;
    let last_query = min(first_query + QUERIES, live.tokens) - 1u;

    // What the first and the last query see.
    let end = live.past + last_query + 1u;
    let first_end = live.past + first_query + 1u;
    let first = first_seen(first_end, args.window);

    let column = lane % 16u;
    let row = 2u * (lane / 16u);
    // Of the query whose eighth of a row of scores this thread has.
    let eighth_row = lane / 8u;
    let eighth = lane % 8u;
    let own_end = live.past + first_query + eighth_row + 1u;
    let own_first = first_seen(own_end, args.window);
    // Finite, because WGSL promises nothing about infinities.
    var highest = -1e30;
    var total = 0.0;
    var upper = array<vec4<f32>, MOST_SUMS>();
    var lower = array<vec4<f32>, MOST_SUMS>();
    for (var base = first; base < end; base += KEYS) {
        let base_row = base % positions;
        // Scores of queries row and row + 1 with keys column and column + 16.
        var a = 0.0;
        var b = 0.0;
        var c = 0.0;
        var d = 0.0;
        for (var depth = 0u; depth < width; depth += DEPTH) {
            workgroupBarrier();
            for (var i = lane; i < QUERIES * DEPTH; i += THREADS) {
                let r = i / DEPTH;
                let four = depth + i % DEPTH;
                var query = vec4<f32>();
                var key = vec4<f32>();
                if four < width {
                    let t = min(first_query + r, last_query);
                    query = q[t * args.stride / 4u + q_start + four] * args.scale;
                    key = keys[row_at(base_row, min(r, end - 1u - base), positions) * kv_stride + kv_start + four];
                }
                tile[r * PITCH + i % DEPTH] = query;
                tile[K_TILE + r * PITCH + i % DEPTH] = key;
            }
            workgroupBarrier();
            for (var i = 0u; i < DEPTH; i++) {
                let upper_query = tile[row * PITCH + i];
                let lower_query = tile[(row + 1u) * PITCH + i];
                let k = tile[K_TILE + column * PITCH + i];
                let l = tile[K_TILE + (column + 16u) * PITCH + i];
                a += dot(upper_query, k);
                b += dot(upper_query, l);
                c += dot(lower_query, k);
                d += dot(lower_query, l);
            }
        }
        scores[row * SCORE_PITCH + column] = a;
        scores[row * SCORE_PITCH + column + 16u] = b;
        scores[(row + 1u) * SCORE_PITCH + column] = c;
        scores[(row + 1u) * SCORE_PITCH + column + 16u] = d;
        workgroupBarrier();

        // Four scores of a query for each thread.
        var mine = vec4<f32>(-1e30);
        let start = eighth_row * SCORE_PITCH + 4u * eighth;
        for (var i = 0u; i < 4u; i++) {
            let position = base + 4u * eighth + i;
            if position >= own_first && position < own_end {
                mine[i] = scores[start + i];
                if args.softcap > 0.0 {
                    mine[i] = softcapped(mine[i], args.softcap);
                }
            }
        }
        eighths[lane] = max(max(mine.x, mine.y), max(mine.z, mine.w));
        workgroupBarrier();
        var new_highest = highest;
        for (var i = 0u; i < 8u; i++) {
            new_highest = max(new_highest, eighths[8u * eighth_row + i]);
        }
        let fade = exp(highest - new_highest);
        for (var i = 0u; i < 4u; i++) {
            let position = base + 4u * eighth + i;
            var weight = 0.0;
            if position >= own_first && position < own_end {
                weight = exp(mine[i] - new_highest);
            }
            mine[i] = weight;
            scores[start + i] = weight;
        }
        total = total * fade + mine.x + mine.y + mine.z + mine.w;
        highest = new_highest;
        workgroupBarrier();
        if eighth == 0u {
            eighths[lane] = fade;
        }
        workgroupBarrier();
        let upper_fade = eighths[8u * row];
        let lower_fade = eighths[8u * (row + 1u)];

        for (var i = 0u; i < MOST_SUMS; i++) {
            let first_four = i * VALUE_FOURS;
            if first_four < width {
                for (var j = lane; j < KEYS * VALUE_FOURS; j += THREADS) {
                    let four = first_four + j % VALUE_FOURS;
                    var value = vec4<f32>();
                    if four < width {
                        let key = min(j / VALUE_FOURS, end - 1u - base);
                        value = values[row_at(base_row, key, positions) * kv_stride + kv_start + four];
                    }
                    tile[j] = value;
                }
                workgroupBarrier();
                var upper_sum = upper[i] * upper_fade;
                var lower_sum = lower[i] * lower_fade;
                for (var j = 0u; j < KEYS; j++) {
                    let value = tile[j * VALUE_FOURS + column];
                    upper_sum += scores[row * SCORE_PITCH + j] * value;
                    lower_sum += scores[(row + 1u) * SCORE_PITCH + j] * value;
                }
                upper[i] = upper_sum;
                lower[i] = lower_sum;
                workgroupBarrier();
            }
        }
    }

    eighths[lane] = total;
    workgroupBarrier();
    var totals = vec2<f32>();
    for (var i = 0u; i < 8u; i++) {
        totals += vec2<f32>(eighths[8u * row + i], eighths[8u * (row + 1u) + i]);
    }
    for (var i = 0u; i < MOST_SUMS; i++) {
        let four = i * VALUE_FOURS + column;
        if four < width {
            let t = first_query + row;
            if t < live.tokens {
                out[(t * args.heads + head) * width + four] = upper[i] / totals.x;
            }
            if t + 1u < live.tokens {
                out[((t + 1u) * args.heads + head) * width + four] = lower[i] / totals.y;
            }
        }
    }
}
