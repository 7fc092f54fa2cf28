// A weight that is not quantised: rows of f16 or bf16 values, two to a word. The names are those of grouped.wgsl, so
// that the same kernels read either.

override BFLOAT16: bool;
// Whether rows have an odd number of values: then every other row starts in the upper half of a word.
override ODD: bool;
const GROUP: u32 = 2u;
const TRANSPOSED: bool = false;
const WHOLE: bool = false;
const CODES_PER_WORD: u32 = 2u;
const WORDS_PER_GROUP: u32 = 1u;

// [rows, columns], two to a word
@group(0) @binding(2) var<storage, read> codes: array<u32>;
// There are none.
@group(0) @binding(3) var<storage, read> scales: array<u32>;

// The piece of a weight that is bound.
struct Matrix {
    rows: u32,
    columns: u32,
}

fn words_per_row(matrix: Matrix) -> u32 {
    return (matrix.columns + 1u) / 2u;
}

// Values 2 * w and 2 * w + 1 of a row; past its end anything.
fn word_of(matrix: Matrix, row: u32, w: u32) -> u32 {
    if !ODD {
        return codes[row * (matrix.columns / 2u) + w];
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
    return half_of(word, i, BFLOAT16);
}

// The columns of a row that its word `w` holds.
struct Span {
    start: u32,
    count: u32,
}

fn span(w: u32, columns: u32) -> Span {
    if !ODD {
        return Span(w * 2u, 2u);
    }
    return Span(w * 2u, min(2u, columns - min(columns, w * 2u)));
}
