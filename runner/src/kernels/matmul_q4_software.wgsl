// Many tokens on a processor's cores, where threads are the lanes of its vectors: a load costs as much for each lane as
// if it were alone. A thread has eight tokens for ROWS rows: it keeps a group of x, of which it loads most, for all of
// these, and decodes each row's group once for all tokens. Without workgroup memory or barriers.

// Rows of a thread.
const ROWS: u32 = 64u;
// Tokens of a thread, and the fours of a group of theirs.
const TOKENS: u32 = 8u;
const FOURS: u32 = 8u * TOKENS;

// [T, columns / 4] fours
@group(0) @binding(4) var<storage, read> x: array<vec4<f32>>;
// One for every row of the whole weight, or anything where has_bias is 0
@group(0) @binding(5) var<storage, read> bias: array<f32>;
// [T, out_width]
@group(0) @binding(6) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(THREADS)
fn matmul(
    @builtin(workgroup_id) group_id: vec3<u32>,
    @builtin(num_workgroups) group_count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let tokens = live_rows(args.rows_of);
    let blocks = (args.rows + ROWS - 1u) / ROWS;
    let block = unit(group_id, group_count);
    let first_row = block % blocks * ROWS;
    let first_token = (block / blocks * THREADS + lane) * TOKENS;
    if first_token >= tokens {
        return;
    }
    let groups = args.columns / 32u;
    let count = min(ROWS, args.rows - first_row);
    var group_of_x = array<vec4<f32>, FOURS>();
    // [ROWS, TOKENS / 4]
    var sums = array<vec4<f32>, 2u * ROWS>();
    for (var group = 0u; group < groups; group++) {
        for (var i = 0u; i < FOURS; i++) {
            // Tokens beyond the last repeat it.
            let t = min(first_token + i / 8u, tokens - 1u);
            group_of_x[i] = x[(t * groups + group) * 8u + i % 8u] * CODE_SCALES;
        }
        for (var r = 0u; r < count; r++) {
            let at = (first_row + r) * groups + group;
            let words = codes[at];
            let a = codes_of(words.x);
            let b = codes_of(words.x >> 16u);
            let c = codes_of(words.y);
            let d = codes_of(words.y >> 16u);
            let e = codes_of(words.z);
            let f = codes_of(words.z >> 16u);
            let g = codes_of(words.w);
            let h = codes_of(words.w >> 16u);
            var dots = array<f32, TOKENS>();
            for (var t = 0u; t < TOKENS; t++) {
                var by = a * group_of_x[8u * t];
                by += b * group_of_x[8u * t + 1u];
                by += c * group_of_x[8u * t + 2u];
                by += d * group_of_x[8u * t + 3u];
                by += e * group_of_x[8u * t + 4u];
                by += f * group_of_x[8u * t + 5u];
                by += g * group_of_x[8u * t + 6u];
                by += h * group_of_x[8u * t + 7u];
                dots[t] = by.x + by.y + by.z + by.w;
            }
            let scale = scale_in(scale_word(at), at);
            sums[2u * r] += scale * vec4<f32>(dots[0], dots[1], dots[2], dots[3]);
            sums[2u * r + 1u] += scale * vec4<f32>(dots[4], dots[5], dots[6], dots[7]);
        }
    }
    for (var r = 0u; r < count; r++) {
        let row = args.first_row + first_row + r;
        var start = 0.0;
        if args.has_bias == 1u {
            start = bias[row];
        }
        for (var t = 0u; t < TOKENS; t++) {
            if first_token + t < tokens {
                out[(first_token + t) * args.out_width + row] = sums[2u * r + t / 4u][t % 4u] + start;
            }
        }
    }
}
