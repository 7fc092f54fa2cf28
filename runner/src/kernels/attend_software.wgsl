// Softmax attention on a processor's cores, where threads are the lanes of its vectors: a load costs as much for each
// lane as if it were alone, so what a thread has loaded it uses for several queries. A thread walks over keys, four at a
// time, for ROWS heads of queries that share them, with running maxima and sums, without workgroup memory or barriers.
//
// With SPLIT, for few queries, threads share what these see and leave their parts for attend_merge.wgsl to join.

override SPLIT: bool;
// Heads of queries of a thread.
override ROWS: u32;
const MOST_ROWS: u32 = 4u;
// Fours of all rows. Compilers take long with many more.
const MOST_FOURS: u32 = 64u;

struct Args {
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    offset: u32,
    stride: u32,
    // 0: every earlier position is seen.
    window: u32,
    scale: f32,
    // 0: scores stay as they are.
    softcap: f32,
    // Positions that a thread has at least with SPLIT, and the most threads that share them.
    share: u32,
    most_shares: u32,
}

@group(0) @binding(1) var<uniform> args: Args;
// [T, stride / 4] fours, queries in columns offset.. of heads * head_dim
@group(0) @binding(2) var<storage, read> q: array<vec4<f32>>;
// [positions, kv_heads, head_dim / 4] fours, a ring: position p is in row p % positions.
@group(0) @binding(3) var<storage, read> keys: array<vec4<f32>>;
// [positions, kv_heads, head_dim / 4], the same
@group(0) @binding(4) var<storage, read> values: array<vec4<f32>>;
// [T, heads, head_dim]; with SPLIT [T, heads, shares, head_dim + 2]: the mix, the highest score and the sum
@group(0) @binding(5) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(THREADS)
fn attend(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = unit(group, groups);
    let kv_head = index % args.kv_heads;
    // Rows are the heads that share a key's, all of a token side by side.
    let sharing = args.heads / args.kv_heads;
    let rows = live.tokens * sharing;
    var shares = 1u;
    if SPLIT {
        shares = shares_of(args.window, args.share, args.most_shares);
    }
    let item = index / args.kv_heads * THREADS + lane;
    let share = item % shares;
    let first_row = item / shares * ROWS;
    if first_row >= rows {
        return;
    }
    let last_row = min(first_row + ROWS, rows) - 1u;
    // Not a constant: compilers would unroll loops over it.
    let width = args.head_dim / 4u;
    let kv_stride = args.kv_heads * width;
    let kv_start = kv_head * width;
    let positions = arrayLength(&keys) / kv_stride;

    // What the first and the last row see, and this thread's share of it.
    let end = live.past + last_row / sharing + 1u;
    let first = first_seen(live.past + first_row / sharing + 1u, args.window);
    let each = (end - first + shares - 1u) / shares;
    let start = min(first + share * each, end);
    let stop = min(start + each, end);

    var query = array<vec4<f32>, MOST_FOURS>();
    var sums = array<vec4<f32>, MOST_FOURS>();
    var ends = array<u32, MOST_ROWS>();
    // Finite, because WGSL promises nothing about infinities.
    var highest = array<f32, MOST_ROWS>();
    var total = array<f32, MOST_ROWS>();
    var fade = array<f32, MOST_ROWS>();
    var scores = array<vec4<f32>, MOST_ROWS>();
    for (var r = 0u; r < ROWS; r++) {
        // Rows beyond the last repeat it.
        let row = min(first_row + r, last_row);
        let t = row / sharing;
        let head = kv_head * sharing + row % sharing;
        ends[r] = live.past + t + 1u;
        highest[r] = -1e30;
        let q_start = t * (args.stride / 4u) + args.offset / 4u + head * width;
        for (var i = 0u; i < width; i++) {
            query[r * width + i] = q[q_start + i] * args.scale;
        }
    }

    let start_row = start % positions;
    for (var base = start; base < stop; base += 4u) {
        // Keys beyond the last repeat it.
        let step = base - start;
        let last = stop - 1u - start;
        let a = row_at(start_row, step, positions) * kv_stride + kv_start;
        let b = row_at(start_row, min(step + 1u, last), positions) * kv_stride + kv_start;
        let c = row_at(start_row, min(step + 2u, last), positions) * kv_stride + kv_start;
        let d = row_at(start_row, min(step + 3u, last), positions) * kv_stride + kv_start;
        for (var r = 0u; r < ROWS; r++) {
            scores[r] = vec4<f32>();
        }
        for (var i = 0u; i < width; i++) {
            let at_a = keys[a + i];
            let at_b = keys[b + i];
            let at_c = keys[c + i];
            let at_d = keys[d + i];
            for (var r = 0u; r < ROWS; r++) {
                let four = query[r * width + i];
                scores[r] += vec4<f32>(dot(four, at_a), dot(four, at_b), dot(four, at_c), dot(four, at_d));
            }
        }
        let position = vec4<u32>(base, base + 1u, base + 2u, base + 3u);
        for (var r = 0u; r < ROWS; r++) {
            var score = scores[r];
            if args.softcap > 0.0 {
                score = args.softcap * tanh(clamp(score / args.softcap, vec4<f32>(-15.0), vec4<f32>(15.0)));
            }
            let seen = (position >= vec4<u32>(first_seen(ends[r], args.window)))
                & (position < vec4<u32>(min(ends[r], stop)));
            score = select(vec4<f32>(-1e30), score, seen);
            let new_highest = max(highest[r], max(max(score.x, score.y), max(score.z, score.w)));
            fade[r] = exp(highest[r] - new_highest);
            // Where nothing has been seen yet, exp would be 1.
            let weights = select(vec4<f32>(), exp(score - new_highest), seen);
            total[r] = total[r] * fade[r] + weights.x + weights.y + weights.z + weights.w;
            highest[r] = new_highest;
            scores[r] = weights;
        }
        for (var i = 0u; i < width; i++) {
            let at_a = values[a + i];
            let at_b = values[b + i];
            let at_c = values[c + i];
            let at_d = values[d + i];
            for (var r = 0u; r < ROWS; r++) {
                let at = r * width + i;
                let w = scores[r];
                sums[at] = sums[at] * fade[r] + w.x * at_a + w.y * at_b + w.z * at_c + w.w * at_d;
            }
        }
    }

    for (var r = 0u; r < ROWS; r++) {
        let row = first_row + r;
        if row <= last_row {
            let of_head = row / sharing * args.heads + kv_head * sharing + row % sharing;
            var at = of_head * args.head_dim;
            var factor = 1.0 / total[r];
            if SPLIT {
                at = (of_head * shares + share) * (args.head_dim + 2u);
                factor = 1.0;
                out[at + args.head_dim] = highest[r];
                out[at + args.head_dim + 1u] = total[r];
            }
            for (var i = 0u; i < width; i++) {
                let four = sums[r * width + i] * factor;
                out[at + 4u * i] = four.x;
                out[at + 4u * i + 1u] = four.y;
                out[at + 4u * i + 2u] = four.z;
                out[at + 4u * i + 3u] = four.w;
            }
        }
    }
}
