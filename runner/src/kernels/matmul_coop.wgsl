// Many tokens with cooperative matrices: tiles of 64 tokens by 128 rows, 32 columns at a time, which is a group of every
// row. Eight subgroups of 32 threads have 32 tokens by 32 rows each: two by two matrices of 16 x 16. Factors are f16,
// sums f32. x comes from halve.wgsl; a row's values are its codes times its scale, rounded to f16.

const TOKENS: u32 = 64u;
const ROWS: u32 = 128u;
// Fours of a row of a tile; two more, so that rows begin in different banks.
const PITCH: u32 = 10u;
const X_TILE: u32 = TOKENS * PITCH;
const W_TILE: u32 = ROWS * PITCH;

// [rows, columns / 32] groups of four words
@group(0) @binding(2) var<storage, read> codes: array<vec4<u32>>;
// [rows, columns / 32] f16, two to a word
@group(0) @binding(3) var<storage, read> scales: array<u32>;
// [T, columns / 4] fours
@group(0) @binding(4) var<storage, read> halves: array<vec4<f16>>;
// [T]
@group(0) @binding(5) var<storage, read> factors: array<f32>;
// [out_width], or anything where has_bias is 0
@group(0) @binding(6) var<storage, read> bias: array<f32>;
// [T, out_width]
@group(0) @binding(7) var<storage, read_write> out: array<f32>;

// [TOKENS, 8 fours], padded
var<workgroup> x_tile: array<vec4<f16>, X_TILE>;
// [ROWS, 8 fours], padded
var<workgroup> w_tile: array<vec4<f16>, W_TILE>;
// [8, 16, 16]: a matrix of each subgroup, on its way out
var<workgroup> sums: array<f32, 2048>;

// What a thread brings into the tiles: half a group of a row, a quarter of a group of x.
struct Fetched {
    words: vec2<u32>,
    scale: f32,
    x: array<vec4<f16>, 2>,
}

fn fetch(first_token: u32, tokens: u32, first_row: u32, group: u32, lane: u32) -> Fetched {
    let groups = args.columns / 32u;
    let row = min(first_row + lane / 2u, args.rows - 1u);
    let at = row * groups + group;
    let four = codes[at];
    var result = Fetched();
    result.words = select(four.xy, four.zw, lane % 2u == 1u);
    let pair = unpack2x16float(scales[at / 2u]);
    result.scale = select(pair.x, pair.y, at % 2u == 1u);
    let t = min(first_token + lane / 4u, tokens - 1u);
    let x = (t * groups + group) * 8u + lane % 4u * 2u;
    result.x[0] = halves[x];
    result.x[1] = halves[x + 1u];
    return result;
}

fn four_of(word: u32, scale: f32) -> vec4<f16> {
    return vec4<f16>(codes_of(word) * (scale * CODE_SCALES));
}

@compute @workgroup_size(THREADS)
fn matmul(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) subgroup_lane: u32,
) {
    let tokens = live_rows(args.rows_of);
    // Neighbouring workgroups share their part of the weight, which is the larger operand.
    let token_tiles = (tokens + TOKENS - 1u) / TOKENS;
    let index = unit(group, groups);
    let first_token = (index % token_tiles) * TOKENS;
    // Workgroups beyond the last row repeat it and write nothing: a return here would divide the flow of the others.
    let first_row = (index / token_tiles) * ROWS;
    let token_part = subgroup % 2u * 32u;
    let row_part = subgroup / 2u * 32u;
    var a = coop_mat16x16<f32, C>();
    var b = coop_mat16x16<f32, C>();
    var c = coop_mat16x16<f32, C>();
    var d = coop_mat16x16<f32, C>();
    let steps = args.columns / 32u;
    // Two steps are under way while a third is multiplied.
    var next = fetch(first_token, tokens, first_row, 0u, lane);
    var after = fetch(first_token, tokens, first_row, min(1u, steps - 1u), lane);
    for (var step = 0u; step < steps; step++) {
        let x_at = lane / 4u * PITCH + lane % 4u * 2u;
        x_tile[x_at] = next.x[0];
        x_tile[x_at + 1u] = next.x[1];
        let w_at = lane / 2u * PITCH + lane % 2u * 4u;
        w_tile[w_at] = four_of(next.words.x, next.scale);
        w_tile[w_at + 1u] = four_of(next.words.x >> 16u, next.scale);
        w_tile[w_at + 2u] = four_of(next.words.y, next.scale);
        w_tile[w_at + 3u] = four_of(next.words.y >> 16u, next.scale);
        workgroupBarrier();
        next = after;
        if step + 2u < steps {
            after = fetch(first_token, tokens, first_row, step + 2u, lane);
        }
        for (var k = 0u; k < 8u; k += 4u) {
            let x_upper = coopLoadT<coop_mat16x16<f16, A>>(&x_tile[token_part * PITCH + k], PITCH);
            let x_lower = coopLoadT<coop_mat16x16<f16, A>>(&x_tile[(token_part + 16u) * PITCH + k], PITCH);
            let w_left = coopLoad<coop_mat16x16<f16, B>>(&w_tile[row_part * PITCH + k], PITCH);
            let w_right = coopLoad<coop_mat16x16<f16, B>>(&w_tile[(row_part + 16u) * PITCH + k], PITCH);
            a = coopMultiplyAdd(x_upper, w_left, a);
            b = coopMultiplyAdd(x_upper, w_right, b);
            c = coopMultiplyAdd(x_lower, w_left, c);
            d = coopMultiplyAdd(x_lower, w_right, d);
        }
        workgroupBarrier();
    }
    for (var i = 0u; i < 4u; i++) {
        let staged = subgroup * 256u;
        switch i {
            case 0u: { coopStoreT(a, &sums[staged], 16u); }
            case 1u: { coopStoreT(b, &sums[staged], 16u); }
            case 2u: { coopStoreT(c, &sums[staged], 16u); }
            default: { coopStoreT(d, &sums[staged], 16u); }
        }
        workgroupBarrier();
        let n = first_row + row_part + i % 2u * 16u + subgroup_lane % 16u;
        for (var j = subgroup_lane / 16u; j < 16u; j += 2u) {
            let t = first_token + token_part + i / 2u * 16u + j;
            if t < tokens && n < args.rows {
                var y = sums[staged + 16u * j + subgroup_lane % 16u] / factors[t];
                if args.has_bias == 1u {
                    y += bias[args.first_row + n];
                }
                out[t * args.out_width + args.first_row + n] = y;
            }
        }
        workgroupBarrier();
    }
}
