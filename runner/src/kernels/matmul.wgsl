// Many tokens: tiles of 32 tokens by 64 rows, a few words of every row at a time, decoded once into workgroup memory.
// Each of the 16 x 16 threads sums 2 tokens by 4 rows in registers.

const TOKENS: u32 = 32u;
const ROWS: u32 = 64u;
// Columns of a tile at most: reached by 3-bit codes, ten to a word.
const DEPTH: u32 = 40u;
// One more than the tile's width, so that threads which write one column of a tile hit different banks.
const X_PITCH: u32 = 33u;
const W_PITCH: u32 = 65u;

// At least 32 columns a step.
override STEP_WORDS: u32 = (31u + CODES_PER_WORD) / CODES_PER_WORD;
override STEP_COLUMNS: u32 = STEP_WORDS * CODES_PER_WORD;

// [DEPTH, TOKENS], padded
var<workgroup> x_tile: array<f32, DEPTH * X_PITCH>;
// [DEPTH, ROWS], padded
var<workgroup> w_tile: array<f32, DEPTH * W_PITCH>;

fn load_x(first_token: u32, tokens: u32, first_word: u32, lane: u32) {
    for (var i = lane; i < TOKENS * STEP_COLUMNS; i += 256u) {
        let t = first_token + i / STEP_COLUMNS;
        let column = i % STEP_COLUMNS;
        let at = span(first_word + column / CODES_PER_WORD, args.columns);
        let in_word = column % CODES_PER_WORD;
        var value = 0.0;
        // Zero beyond the row's end takes out whatever the padded codes decode to.
        if t < tokens && in_word < at.count {
            value = x[t * args.columns + at.start + in_word];
        }
        x_tile[column * X_PITCH + i / STEP_COLUMNS] = value;
    }
}

fn load_w(first_row: u32, first_word: u32, lane: u32) {
    let words = words_per_row(args.columns);
    let groups = groups_per_row(args.columns);
    for (var i = lane; i < ROWS * STEP_WORDS; i += 256u) {
        let tile_row = i / STEP_WORDS;
        let slot = i % STEP_WORDS;
        let row = first_row + tile_row;
        let w = first_word + slot;
        var word = 0u;
        var factor = 0.0;
        if row < args.rows && w < words {
            word = codes[row * words + w];
            factor = scale(row * groups + w / WORDS_PER_GROUP);
        }
        for (var c = 0u; c < CODES_PER_WORD; c++) {
            w_tile[(slot * CODES_PER_WORD + c) * W_PITCH + tile_row] = code(word, c) * factor;
        }
    }
}

@compute @workgroup_size(256)
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
    let row = lane % 16u;
    let t = lane / 16u;
    let words = words_per_row(args.columns);
    var low = vec4<f32>();
    var high = vec4<f32>();
    for (var w = 0u; w < words; w += STEP_WORDS) {
        load_x(first_token, tokens, w, lane);
        load_w(first_row, w, lane);
        workgroupBarrier();
        for (var k = 0u; k < STEP_COLUMNS; k++) {
            let at = k * W_PITCH + row;
            let weights = vec4<f32>(w_tile[at], w_tile[at + 16u], w_tile[at + 32u], w_tile[at + 48u]);
            low += x_tile[k * X_PITCH + t] * weights;
            high += x_tile[k * X_PITCH + t + 16u] * weights;
        }
        workgroupBarrier();
    }
    for (var j = 0u; j < 4u; j++) {
        let n = first_row + row + 16u * j;
        if n < args.rows && first_token + t < tokens {
            put(first_token + t, n, low[j]);
        }
        if n < args.rows && first_token + t + 16u < tokens {
            put(first_token + t + 16u, n, high[j]);
        }
    }
}
