// A weight in a grouped layout (`formats::quant::Grouped`): rows of words of codes, and one scale a group.

override BITS: u32;
override GROUP: u32;
// The code that stands for zero.
override ZERO: u32;
// Whether the first of two codes is in the upper half of their byte.
override HIGH_FIRST: bool;
// Whether codes and scales lie transposed: those of a row are `rows` apart.
override TRANSPOSED: bool;
// Type of the scales: 0: f16, 1: bf16, two to a word; 2: f32.
override SCALES: u32;
// Whether every word of a row is full, which all but odd shapes are.
override WHOLE: bool;
override CODES_PER_WORD: u32 = 32u / BITS;
override WORDS_PER_GROUP: u32 = (GROUP + CODES_PER_WORD - 1u) / CODES_PER_WORD;

// [rows, words of a row], or the transpose
@group(0) @binding(2) var<storage, read> codes: array<u32>;
// [rows, groups of a row], or the transpose; of two to a word, a row may start with the upper one
@group(0) @binding(3) var<storage, read> scales: array<u32>;

// The piece of a weight that is bound.
struct Matrix {
    rows: u32,
    columns: u32,
}

fn groups_per_row(matrix: Matrix) -> u32 {
    return (matrix.columns + GROUP - 1u) / GROUP;
}

fn words_per_row(matrix: Matrix) -> u32 {
    return groups_per_row(matrix) * WORDS_PER_GROUP;
}

// Word `w` of a row.
fn word_of(matrix: Matrix, row: u32, w: u32) -> u32 {
    if TRANSPOSED {
        return codes[w * matrix.rows + row];
    }
    return codes[row * words_per_row(matrix) + w];
}

// The scale of word `w` of a row.
fn scale_of(matrix: Matrix, row: u32, w: u32) -> f32 {
    let group = w / WORDS_PER_GROUP;
    var i = row * groups_per_row(matrix) + group;
    if TRANSPOSED {
        i = group * matrix.rows + row;
    }
    if SCALES == 2u {
        return bitcast<f32>(scales[i]);
    }
    return half_of(scales[i / 2u], i % 2u, SCALES == 1u);
}

// What code `i` of a word stands for, in units of its scale.
fn code(word: u32, i: u32) -> f32 {
    let at = select(i, i ^ 1u, HIGH_FIRST);
    return f32(extractBits(word, at * BITS, BITS)) - f32(ZERO);
}

// The columns of a row that its word `w` holds; the last ones of a group or of a row may be padding.
struct Span {
    start: u32,
    count: u32,
}

fn span(w: u32, columns: u32) -> Span {
    if WHOLE {
        return Span(w * CODES_PER_WORD, CODES_PER_WORD);
    }
    let in_group = (w % WORDS_PER_GROUP) * CODES_PER_WORD;
    let start = (w / WORDS_PER_GROUP) * GROUP + in_group;
    let left = columns - min(start, columns);
    return Span(start, min(left, min(CODES_PER_WORD, GROUP - in_group)));
}
