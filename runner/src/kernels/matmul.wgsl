// Many tokens: tiles of 32 or 64 tokens by 128 rows (fewer with fewer threads), a few words of every row at a time,
// decoded once into workgroup memory. Each of the 8 x 32 threads sums 4 or 8 tokens by 4 rows in registers. What the tiles hold is
// for tile_f32.wgsl or tile_f16.wgsl to say; sums are f32.

// 32 or 64
override TOKENS: u32;
override IS_TALL: bool = TOKENS > 32u;
override ROWS: u32 = THREADS / 2u;
// Columns of a tile at most: two words of 3-bit codes.
const DEPTH: u32 = 20u;
// Tiles are stored in fours of tokens or rows. One more than their width, so that threads which write one column of a
// tile hit different banks.
override X_PITCH: u32 = TOKENS / 4u + 1u;
override X_TILE: u32 = DEPTH * X_PITCH;
override W_PITCH: u32 = ROWS / 4u + 1u;
override W_TILE: u32 = DEPTH * W_PITCH;

override STEP_WORDS: u32 = DEPTH / CODES_PER_WORD;
override STEP_COLUMNS: u32 = STEP_WORDS * CODES_PER_WORD;

// [DEPTH, TOKENS], padded
var<workgroup> x_tile: array<Tile4, X_TILE>;
// [DEPTH, ROWS], padded
var<workgroup> w_tile: array<Tile4, W_TILE>;

// x of a token, or zero where there is none: beyond the row's end that takes out whatever padded codes decode to.
fn x_or_zero(t: u32, tokens: u32, column: u32, used: bool) -> f32 {
    if used && t < tokens {
        return x_at(t * args.columns + column);
    }
    return 0.0;
}

fn load_x(first_token: u32, tokens: u32, first_word: u32, lane: u32) {
    let words = words_per_row(matrix());
    for (var i = lane; i < TOKENS / 4u * STEP_COLUMNS; i += THREADS) {
        let column = i % STEP_COLUMNS;
        let four = i / STEP_COLUMNS;
        let t = first_token + 4u * four;
        let w = first_word + column / CODES_PER_WORD;
        let in_word = column % CODES_PER_WORD;
        let at = span(w, args.columns);
        let used = w < words && in_word < at.count;
        let x_of_four = vec4<f32>(
            x_or_zero(t, tokens, at.start + in_word, used),
            x_or_zero(t + 1u, tokens, at.start + in_word, used),
            x_or_zero(t + 2u, tokens, at.start + in_word, used),
            x_or_zero(t + 3u, tokens, at.start + in_word, used),
        );
        x_tile[column * X_PITCH + four] = x_to_tile(four, x_of_four);
    }
}

struct Loaded {
    word: u32,
    scale: f32,
}

fn load_word(row: u32, w: u32) -> Loaded {
    if row < args.rows && w < words_per_row(matrix()) {
        return Loaded(word_of(matrix(), row, w), scale_of(matrix(), row, w));
    }
    return Loaded(0u, 0.0);
}

fn load_w(first_row: u32, first_word: u32, lane: u32) {
    for (var i = lane; i < ROWS / 4u * STEP_WORDS; i += THREADS) {
        let four = i / STEP_WORDS;
        let slot = i % STEP_WORDS;
        let row = first_row + 4u * four;
        let w = first_word + slot;
        // One thread decodes a word of four rows, because two threads must not write one vector.
        let p = load_word(row, w);
        let q = load_word(row + 1u, w);
        let r = load_word(row + 2u, w);
        let s = load_word(row + 3u, w);
        let scales_of_four = vec4<f32>(p.scale, q.scale, r.scale, s.scale);
        for (var c = 0u; c < CODES_PER_WORD; c++) {
            let codes_of_four = vec4<f32>(code(p.word, c), code(q.word, c), code(r.word, c), code(s.word, c));
            let w_of_four = codes_of_four * scales_of_four;
            w_tile[(slot * CODES_PER_WORD + c) * W_PITCH + four] = w_to_tile(four, w_of_four);
        }
    }
}

fn put4(t: u32, tokens: u32, first_row: u32, sums: vec4<f32>) {
    if t >= tokens {
        return;
    }
    for (var j = 0u; j < 4u; j++) {
        let row = first_row + j;
        if row < args.rows {
            put(t, row, sums[j]);
        }
    }
}

@compute @workgroup_size(THREADS)
fn matmul(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let tokens = live_rows(args.rows_of);
    // Neighbouring workgroups share their part of the weight, which is the larger operand.
    let token_tiles = (tokens + TOKENS - 1u) / TOKENS;
    let tile = unit(group, groups);
    let first_token = (tile % token_tiles) * TOKENS;
    let first_row = (tile / token_tiles) * ROWS;
    if first_row >= args.rows {
        return;
    }
    // This thread's four rows and four tokens; in tall tiles four more, 32 further on.
    let row_four = lane % (ROWS / 4u);
    let token_four = lane / (ROWS / 4u);
    let words = words_per_row(matrix());
    prepare(first_token, tokens, first_row, lane);
    var a = vec4<f32>();
    var b = vec4<f32>();
    var c = vec4<f32>();
    var d = vec4<f32>();
    var e = vec4<f32>();
    var f = vec4<f32>();
    var g = vec4<f32>();
    var h = vec4<f32>();
    for (var w = 0u; w < words; w += STEP_WORDS) {
        load_x(first_token, tokens, w, lane);
        load_w(first_row, w, lane);
        workgroupBarrier();
        for (var k = 0u; k < STEP_COLUMNS; k++) {
            let weights = vec4<f32>(w_tile[k * W_PITCH + row_four]);
            let inputs = vec4<f32>(x_tile[k * X_PITCH + token_four]);
            a += inputs.x * weights;
            b += inputs.y * weights;
            c += inputs.z * weights;
            d += inputs.w * weights;
            if IS_TALL {
                let more = vec4<f32>(x_tile[k * X_PITCH + token_four + 8u]);
                e += more.x * weights;
                f += more.y * weights;
                g += more.z * weights;
                h += more.w * weights;
            }
        }
        workgroupBarrier();
    }
    let token = 4u * token_four;
    let t = first_token + token;
    let row = first_row + 4u * row_four;
    put4(t, tokens, row, from_tiles(token, row_four, a));
    put4(t + 1u, tokens, row, from_tiles(token + 1u, row_four, b));
    put4(t + 2u, tokens, row, from_tiles(token + 2u, row_four, c));
    put4(t + 3u, tokens, row, from_tiles(token + 3u, row_four, d));
    if IS_TALL {
        put4(t + 32u, tokens, row, from_tiles(token + 32u, row_four, e));
        put4(t + 33u, tokens, row, from_tiles(token + 33u, row_four, f));
        put4(t + 34u, tokens, row, from_tiles(token + 34u, row_four, g));
        put4(t + 35u, tokens, row, from_tiles(token + 35u, row_four, h));
    }
}
