// Four codes of 4 bits become numbers without a conversion, of which devices do few at a time: a code's bits in the
// mantissa of 2^23 count from there, in steps of their place.

// The code that stands for zero.
override ZERO: u32;

// What the numbers of `codes_of` are to be multiplied by.
const CODE_SCALES: vec4<f32> = vec4<f32>(1.0, 0.0625, 0.00390625, 0.000244140625);

// The lower four codes of a word, less ZERO: times 1, 16, 256 and 4096.
fn codes_of(word: u32) -> vec4<f32> {
    let bits = (vec4<u32>(word) & vec4<u32>(0xfu, 0xf0u, 0xf00u, 0xf000u)) | vec4<u32>(0x4b000000u);
    let zeros = 8388608.0 + f32(ZERO) * vec4<f32>(1.0, 16.0, 256.0, 4096.0);
    return bitcast<vec4<f32>>(bits) - zeros;
}
