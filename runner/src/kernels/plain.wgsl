// A weight that is not quantised: rows of f32 values, or of f16 or bf16 ones, two to a word. The names are those of
// grouped.wgsl, so that the same kernels read either.

// Type of the values: 0: f16, 1: bf16, two to a word; 2: f32.
override VALUES: u32;
// Whether rows have an odd number of values: then every other row of two to a word starts in the upper half of one.
override ODD: bool;
override CODES_PER_WORD: u32 = 2u - VALUES / 2u;
override GROUP: u32 = CODES_PER_WORD;
const TRANSPOSED: bool = false;
const WHOLE: bool = false;
const WORDS_PER_GROUP: u32 = 1u;

// [rows, columns]
@group(0) @binding(2) var<storage, read> codes: array<u32>;
// There are none.
@group(0) @binding(3) var<storage, read> scales: array<u32>;

// The piece of a weight that is bound.
struct Matrix {
    rows: u32,
    columns: u32,
}

fn words_per_row(matrix: Matrix) -> u32 {
    return (matrix.columns + CODES_PER_WORD - 1u) / CODES_PER_WORD;
}

// Word `w` of a row; past its end, half of it may be anything.
fn word_of(matrix: Matrix, row: u32, w: u32) -> u32 {
    if VALUES == 2u || !ODD {
        return codes[row * (matrix.columns / CODES_PER_WORD) + w];
    }
    let first = row * matrix.columns + 2u * w;
    let word = codes[first / 2u];
    if first % 2u == 0u {
        return word;
    }
    let next = min(first / 2u + 1u, arrayLength(&codes) - 1u);
    return (word >> 16u) | (codes[next] << 16u);
}

fn scale_of(matrix: Matrix, row: u32, w: u32) -> f32 {
    return 1.0;
}

// Value `i` of a word.
fn code(word: u32, i: u32) -> f32 {
    if VALUES == 2u {
        return bitcast<f32>(word);
    }
    return half_of(word, i, VALUES == 1u);
}

// The columns of a row that its word `w` holds.
struct Span {
    start: u32,
    count: u32,
}

fn span(w: u32, columns: u32) -> Span {
    let start = w * CODES_PER_WORD;
    if !ODD {
        return Span(start, CODES_PER_WORD);
    }
    return Span(start, min(CODES_PER_WORD, columns - min(columns, start)));
}
