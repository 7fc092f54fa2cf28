// Softmax attention of each query over the positions it may see. One workgroup a token and head walks over blocks of
// keys, one a thread, and keeps a running maximum and sum (online softmax, Milakov & Gimelshein 2018).

override BLOCK: u32 = THREADS;
// The widest head.
const WIDEST: u32 = 512u;
// Sums of the mixed values that a thread keeps: enough for the fewest threads.
const MOST_SUMS: u32 = 8u;
override SUMS: u32 = WIDEST / THREADS;

// [T, stride], queries in columns offset.. of heads * head_dim
@group(0) @binding(2) var<storage, read> q: array<f32>;
// [positions, kv_heads, head_dim], a ring: position p is in row p % positions.
@group(0) @binding(3) var<storage, read> keys: array<f32>;
// [positions, kv_heads, head_dim], the same
@group(0) @binding(4) var<storage, read> values: array<f32>;
// [T, heads, head_dim]
@group(0) @binding(5) var<storage, read_write> out: array<f32>;

// [head_dim], scaled
var<workgroup> query: array<f32, WIDEST>;
// [BLOCK]: scores, then their exponentials
var<workgroup> weights: array<f32, BLOCK>;
var<workgroup> partial: array<f32, BLOCK>;

fn block_max(lane: u32, value: f32) -> f32 {
    partial[lane] = value;
    workgroupBarrier();
    for (var half = BLOCK / 2u; half > 0u; half /= 2u) {
        if lane < half {
            partial[lane] = max(partial[lane], partial[lane + half]);
        }
        workgroupBarrier();
    }
    let result = partial[0];
    workgroupBarrier();
    return result;
}

fn block_sum(lane: u32, value: f32) -> f32 {
    partial[lane] = value;
    workgroupBarrier();
    for (var half = BLOCK / 2u; half > 0u; half /= 2u) {
        if lane < half {
            partial[lane] += partial[lane + half];
        }
        workgroupBarrier();
    }
    let result = partial[0];
    workgroupBarrier();
    return result;
}

@compute @workgroup_size(THREADS)
fn attend(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = unit(group, groups);
    let t = index / args.heads;
    let head = index % args.heads;
    if t >= live.tokens {
        return;
    }
    let kv_stride = args.kv_heads * args.head_dim;
    let positions = arrayLength(&keys) / kv_stride;
    let kv_head = head / (args.heads / args.kv_heads) * args.head_dim;
    let q_start = t * args.stride + args.offset + head * args.head_dim;
    for (var d = lane; d < args.head_dim; d += BLOCK) {
        query[d] = q[q_start + d] * args.scale;
    }
    workgroupBarrier();

    // Positions first..end are seen; the last of them is the query's own.
    let end = live.past + t + 1u;
    let first = first_seen(end, args.window);
    // Finite, because WGSL promises nothing about infinities.
    var highest = -1e30;
    var total = 0.0;
    var sums = array<f32, MOST_SUMS>();
    for (var base = first; base < end; base += BLOCK) {
        let position = base + lane;
        var score = -1e30;
        if position < end {
            let row = position % positions * kv_stride + kv_head;
            score = 0.0;
            for (var d = 0u; d < args.head_dim; d++) {
                score += query[d] * keys[row + d];
            }
            if args.softcap > 0.0 {
                score = softcapped(score, args.softcap);
            }
        }
        let new_highest = max(highest, block_max(lane, score));
        var weight = 0.0;
        if position < end {
            weight = exp(score - new_highest);
        }
        weights[lane] = weight;
        let fade = exp(highest - new_highest);
        // The barriers of the sum also publish `weights`.
        total = total * fade + block_sum(lane, weight);
        let count = min(BLOCK, end - base);
        let base_row = base % positions;
        for (var i = 0u; i < SUMS; i++) {
            let d = i * BLOCK + lane;
            if d < args.head_dim {
                var sum = 0.0;
                for (var j = 0u; j < count; j++) {
                    let row = row_at(base_row, j, positions) * kv_stride + kv_head;
                    sum += weights[j] * values[row + d];
                }
                sums[i] = sums[i] * fade + sum;
            }
        }
        highest = new_highest;
        workgroupBarrier();
    }
    let out_start = (t * args.heads + head) * args.head_dim;
    for (var i = 0u; i < SUMS; i++) {
        let d = i * BLOCK + lane;
        if d < args.head_dim {
            out[out_start + d] = sums[i] / total;
        }
    }
}
