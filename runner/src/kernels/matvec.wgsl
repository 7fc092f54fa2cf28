// Few tokens: the weight is read once a token, word by word. A workgroup has 256 / LANES rows with LANES threads each;
// neighbouring threads read neighbouring words.

// A power of two.
override LANES: u32;
override ROWS: u32 = 256u / LANES;

var<workgroup> partial: array<f32, 256>;

// The share of word `w` of a row, whose first scale is `first_scale`, with the token whose x starts at `x_start`.
fn share(word: u32, w: u32, first_scale: u32, x_start: u32) -> f32 {
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
    return sum * scale(first_scale + w / WORDS_PER_GROUP);
}

@compute @workgroup_size(256)
fn matvec(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let blocks = (args.rows + ROWS - 1u) / ROWS;
    let block = unit(group, groups);
    let t = block / blocks;
    if t >= live_rows(args.rows_of) {
        return;
    }
    let row = (block % blocks) * ROWS + lane / LANES;
    let words = words_per_row(args.columns);
    let x_start = t * args.columns;
    var sum = 0.0;
    if row < args.rows {
        let first = row * words;
        let first_scale = row * groups_per_row(args.columns);
        var w = lane % LANES;
        for (; w + 3u * LANES < words; w += 4u * LANES) {
            // Four loads in flight before the first is used.
            let a = codes[first + w];
            let b = codes[first + w + LANES];
            let c = codes[first + w + 2u * LANES];
            let d = codes[first + w + 3u * LANES];
            sum += share(a, w, first_scale, x_start);
            sum += share(b, w + LANES, first_scale, x_start);
            sum += share(c, w + 2u * LANES, first_scale, x_start);
            sum += share(d, w + 3u * LANES, first_scale, x_start);
        }
        for (; w < words; w += LANES) {
            sum += share(codes[first + w], w, first_scale, x_start);
        }
    }
    partial[lane] = sum;
    workgroupBarrier();
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        if lane % LANES < half {
            partial[lane] += partial[lane + half];
        }
        workgroupBarrier();
    }
    if lane % LANES == 0u && row < args.rows {
        put(t, row, partial[lane]);
    }
}
