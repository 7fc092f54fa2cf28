// A weight that is not quantised: rows of an even number of f16 or bf16 values, two to a word. The names are those of
// grouped.wgsl, so that the same kernels read either.

override BFLOAT16: bool;
const GROUP: u32 = 2u;
const WHOLE: bool = true;
const CODES_PER_WORD: u32 = 2u;
const WORDS_PER_GROUP: u32 = 1u;

// [rows, columns / 2]
@group(0) @binding(2) var<storage, read> codes: array<u32>;
// There are none.
@group(0) @binding(3) var<storage, read> scales: array<u32>;

fn groups_per_row(columns: u32) -> u32 {
    return columns / 2u;
}

fn words_per_row(columns: u32) -> u32 {
    return columns / 2u;
}

// Value `i` of a word.
fn code(word: u32, i: u32) -> f32 {
    if BFLOAT16 {
        return bitcast<f32>(select(word << 16u, word & 0xffff0000u, i == 1u));
    }
    let pair = unpack2x16float(word);
    return select(pair.x, pair.y, i == 1u);
}

fn scale(index: u32) -> f32 {
    return 1.0;
}

// The columns of a row that its word `w` holds.
struct Span {
    start: u32,
    count: u32,
}

fn span(w: u32, columns: u32) -> Span {
    return Span(w * 2u, 2u);
}
