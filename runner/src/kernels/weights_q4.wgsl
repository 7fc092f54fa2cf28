// Where rows of whole groups of 32 codes of 4 bits are, and their scales.

// Type of the scales: 0: f16, 1: bf16, two to a word; 2: f32.
override SCALES: u32;

// [rows, columns / 32] groups of four words
@group(0) @binding(2) var<storage, read> codes: array<vec4<u32>>;
// [rows, columns / 32]
@group(0) @binding(3) var<storage, read> scales: array<u32>;

fn scale_word(i: u32) -> u32 {
    if SCALES == 2u {
        return scales[i];
    }
    return scales[i / 2u];
}

fn scale_in(word: u32, i: u32) -> f32 {
    if SCALES == 2u {
        return bitcast<f32>(word);
    }
    return half_of(word, i % 2u, SCALES == 1u);
}
