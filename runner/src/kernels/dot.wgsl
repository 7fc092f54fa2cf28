// A row of the weight times the x of a token, shared out among threads.

// The share of word `w` of a row, with the token whose x starts at `x_start`.
fn share(word: u32, row: u32, w: u32, x_start: u32) -> f32 {
    let at = span(w, args.columns);
    let start = x_start + at.start;
    var sum = 0.0;
    if WHOLE && CODES_PER_WORD % 4u == 0u {
        // Rows of x start at a multiple of four, and the bound is known to the compiler.
        for (var i = 0u; i < CODES_PER_WORD; i += 4u) {
            let four = vec4<f32>(code(word, i), code(word, i + 1u), code(word, i + 2u), code(word, i + 3u));
            sum += dot(four, x[(start + i) / 4u]);
        }
    } else {
        for (var i = 0u; i < at.count; i++) {
            sum += code(word, i) * x_at(start + i);
        }
    }
    return sum * scale_of(matrix(), row, w);
}

// The share of the words first, first + step, ... of a row.
fn shares(row: u32, x_start: u32, first: u32, step: u32) -> f32 {
    let words = words_per_row(matrix());
    var sum = 0.0;
    var w = first;
    for (; w + 3u * step < words; w += 4u * step) {
        // Four loads in flight before the first is used.
        let a = word_of(matrix(), row, w);
        let b = word_of(matrix(), row, w + step);
        let c = word_of(matrix(), row, w + 2u * step);
        let d = word_of(matrix(), row, w + 3u * step);
        sum += share(a, row, w, x_start);
        sum += share(b, row, w + step, x_start);
        sum += share(c, row, w + 2u * step, x_start);
        sum += share(d, row, w + 3u * step, x_start);
    }
    for (; w < words; w += step) {
        sum += share(word_of(matrix(), row, w), row, w, x_start);
    }
    return sum;
}
