// A weight in a grouped layout (`formats::quant::Grouped`): rows of words of codes, and one f16 scale a group.

override BITS: u32;
override GROUP: u32;
// Whether every word of a row is full, which all but odd shapes are.
override WHOLE: bool;
override CODES_PER_WORD: u32 = 32u / BITS;
override WORDS_PER_GROUP: u32 = (GROUP + CODES_PER_WORD - 1u) / CODES_PER_WORD;

// [rows, words of a row]
@group(0) @binding(2) var<storage, read> codes: array<u32>;
// [rows, groups of a row] of f16, two to a word; a row may start in the upper half of one.
@group(0) @binding(3) var<storage, read> scales: array<u32>;

fn groups_per_row(columns: u32) -> u32 {
    return (columns + GROUP - 1u) / GROUP;
}

fn words_per_row(columns: u32) -> u32 {
    return groups_per_row(columns) * WORDS_PER_GROUP;
}

// What code `i` of a word stands for, in units of its scale.
fn code(word: u32, i: u32) -> f32 {
    let zero = (1u << (BITS - 1u)) - 1u;
    return f32(extractBits(word, i * BITS, BITS)) - f32(zero);
}

fn scale(index: u32) -> f32 {
    let pair = unpack2x16float(scales[index / 2u]);
    return select(pair.x, pair.y, index % 2u == 1u);
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
