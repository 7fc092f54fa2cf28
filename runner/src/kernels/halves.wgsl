// Two-byte values, two to a word.

// The lower (i = 0) or upper (1) half of a word, a bf16 or an f16. Needs no feature.
fn half_of(word: u32, i: u32, bfloat16: bool) -> f32 {
    if bfloat16 {
        return bitcast<f32>(select(word << 16u, word & 0xffff0000u, i == 1u));
    }
    let pair = unpack2x16float(word);
    return select(pair.x, pair.y, i == 1u);
}
