// Few tokens on a processor's cores, where threads are the lanes of its vectors: a load costs as much for each lane as
// if it were alone, so it is for four values where it can be, and x is for four rows. Without workgroup memory or
// barriers.

// A group of x, scaled for its places in words.
struct Group {
    a: vec4<f32>,
    b: vec4<f32>,
    c: vec4<f32>,
    d: vec4<f32>,
    e: vec4<f32>,
    f: vec4<f32>,
    g: vec4<f32>,
    h: vec4<f32>,
}

fn word_dot(word: u32, left: vec4<f32>, right: vec4<f32>) -> f32 {
    return dot(codes_of(word), left) + dot(codes_of(word >> 16u), right);
}

// A row's group times that of x.
fn group_dot(i: u32, by: Group) -> f32 {
    let words = codes[i];
    let sum = word_dot(words.x, by.a, by.b) + word_dot(words.y, by.c, by.d)
        + word_dot(words.z, by.e, by.f) + word_dot(words.w, by.g, by.h);
    return sum * scale_in(scale_word(i), i);
}

fn group_dots(at: vec4<u32>, by: Group) -> vec4<f32> {
    return vec4<f32>(group_dot(at.x, by), group_dot(at.y, by), group_dot(at.z, by), group_dot(at.w, by));
}

// Four values of x, normed but for the root mean square, and scaled for their places.
fn placed(four: vec4<f32>, column: u32) -> vec4<f32> {
    if NORM {
        return four * norm[column] * CODE_SCALES;
    }
    return four * CODE_SCALES;
}

@compute @workgroup_size(THREADS)
fn matvec(
    @builtin(workgroup_id) group_id: vec3<u32>,
    @builtin(num_workgroups) group_count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let per_team = select(4u, 2u, GATED);
    let per_workgroup = THREADS * per_team;
    let blocks = (args.outputs + per_workgroup - 1u) / per_workgroup;
    let block = unit(group_id, group_count);
    let t = block / blocks;
    let first = block % blocks * per_workgroup + lane * per_team;
    if t >= live_rows(args.rows_of) || first >= args.outputs {
        return;
    }
    let groups = args.columns / 32u;
    let x_start = (live_rows(args.from_rows_of) - live_rows(args.rows_of) + t) * groups * 8u;
    // Rows beyond the end repeat the last.
    let starts = min(rows_of_team(first), vec4<u32>(args.rows - 1u)) * groups;
    var sums = vec4<f32>();
    var squares = 0.0;
    for (var i = 0u; i < groups; i++) {
        let column = 8u * i;
        let at = x_start + column;
        let raw = Group(x[at], x[at + 1u], x[at + 2u], x[at + 3u], x[at + 4u], x[at + 5u], x[at + 6u], x[at + 7u]);
        if NORM {
            squares += dot(raw.a, raw.a) + dot(raw.b, raw.b) + dot(raw.c, raw.c) + dot(raw.d, raw.d)
                + dot(raw.e, raw.e) + dot(raw.f, raw.f) + dot(raw.g, raw.g) + dot(raw.h, raw.h);
        }
        let by = Group(
            placed(raw.a, column),
            placed(raw.b, column + 1u),
            placed(raw.c, column + 2u),
            placed(raw.d, column + 3u),
            placed(raw.e, column + 4u),
            placed(raw.f, column + 5u),
            placed(raw.g, column + 6u),
            placed(raw.h, column + 7u),
        );
        sums += group_dots(starts + i, by);
    }
    if NORM {
        sums *= 1.0 / sqrt(squares / f32(args.columns) + args.eps);
    }
    finish(t, first, sums);
}
