// Few tokens: a thread takes a group of four rows at a time, four words of each in one load. x goes through workgroup
// memory, once for all rows of the workgroup.

// Threads that share the groups of a row: a power of two from 8 on.
override LANES: u32;
// A row's group has eight fours of x; one more, so that neighbouring threads read from different banks.
const PITCH: u32 = 9u;
// Groups of x that are in workgroup memory at a time: a multiple of LANES.
override TILE: u32;
override STEPS: u32 = TILE / LANES;
override X_TILE: u32 = TILE * PITCH;
// Fours of x that a thread brings into the tile, and the most, with the fewest threads.
override X_EACH: u32 = (TILE * 8u + THREADS - 1u) / THREADS;
const MOST_EACH: u32 = 8u;

// [TILE] groups of x, padded; each value scaled for its place in a word
var<workgroup> x_tile: array<vec4<f32>, X_TILE>;

// The groups of four rows that a thread takes at once: codes and the words that have their scales.
struct Groups {
    a: vec4<u32>,
    b: vec4<u32>,
    c: vec4<u32>,
    d: vec4<u32>,
    scales: vec4<u32>,
}

// Where their groups start; rows beyond the end repeat the last.
fn starts_of(first: u32, groups: u32) -> vec4<u32> {
    return min(rows_of_team(first), vec4<u32>(args.rows - 1u)) * groups;
}

// Group `i` of the rows that start at these groups; beyond a row's end anything that can be read.
fn groups_at(starts: vec4<u32>, i: u32, groups: u32) -> Groups {
    let at = starts + min(i, groups - 1u);
    return Groups(
        codes[at.x],
        codes[at.y],
        codes[at.z],
        codes[at.w],
        vec4<u32>(scale_word(at.x), scale_word(at.y), scale_word(at.z), scale_word(at.w)),
    );
}

// Two fours of x, scaled for it, times a word of each of four rows.
fn words_dot(left: vec4<f32>, right: vec4<f32>, words: vec4<u32>) -> vec4<f32> {
    let low = vec4<f32>(
        dot(codes_of(words.x), left),
        dot(codes_of(words.y), left),
        dot(codes_of(words.z), left),
        dot(codes_of(words.w), left),
    );
    let high = vec4<f32>(
        dot(codes_of(words.x >> 16u), right),
        dot(codes_of(words.y >> 16u), right),
        dot(codes_of(words.z >> 16u), right),
        dot(codes_of(words.w >> 16u), right),
    );
    return low + high;
}

@compute @workgroup_size(THREADS)
fn matvec(
    @builtin(workgroup_id) group_id: vec3<u32>,
    @builtin(num_workgroups) group_count: vec3<u32>,
    thread: Thread,
) {
    let per_team = select(4u, 2u, GATED);
    let per_pass = THREADS / LANES * per_team;
    let per_workgroup = per_pass * args.passes;
    let blocks = (args.outputs + per_workgroup - 1u) / per_workgroup;
    let block = unit(group_id, group_count);
    let t = block / blocks;
    if t >= live_rows(args.rows_of) {
        return;
    }
    let lane = thread.lane % LANES;
    let groups = args.columns / 32u;
    let fours = args.columns / 4u;
    let x_start = (live_rows(args.from_rows_of) - live_rows(args.rows_of) + t) * fours;
    let tiles = (groups + TILE - 1u) / TILE;

    var first = block % blocks * per_workgroup + thread.lane / LANES * per_team;
    var inverse = 1.0;
    var squares = 0.0;
    // Weights and x are under way before they are needed.
    var next = groups_at(starts_of(first, groups), lane, groups);
    var next_x = array<vec4<f32>, MOST_EACH>();
    var next_norm = array<vec4<f32>, MOST_EACH>();
    for (var i = 0u; i < X_EACH; i++) {
        let four = min(thread.lane + i * THREADS, fours - 1u);
        next_x[i] = x[x_start + four];
        if NORM {
            next_norm[i] = norm[four];
        }
    }
    for (var turn = 0u; turn < args.passes; turn++) {
        let starts = starts_of(first, groups);
        let next_first = first + per_pass;
        let next_starts = starts_of(next_first, groups);
        var sums = vec4<f32>();
        for (var tile = 0u; tile < tiles; tile++) {
            // What fits the tile stays there for all passes.
            let brings_x = tiles > 1u || turn == 0u;
            if brings_x {
                workgroupBarrier();
                for (var i = 0u; i < X_EACH; i++) {
                    let at = thread.lane + i * THREADS;
                    var value = next_x[i];
                    if tile * TILE * 8u + at >= fours {
                        value = vec4<f32>();
                    }
                    if NORM {
                        if turn == 0u && at < TILE * 8u {
                            squares += dot(value, value);
                        }
                        value *= next_norm[i];
                    }
                    if at < TILE * 8u {
                        x_tile[at / 8u * PITCH + at % 8u] = value * CODE_SCALES;
                    }
                }
                workgroupBarrier();
            }
            if tiles > 1u {
                let next_tile = select(0u, tile + 1u, tile + 1u < tiles);
                for (var i = 0u; i < X_EACH; i++) {
                    let four = min(next_tile * TILE * 8u + thread.lane + i * THREADS, fours - 1u);
                    next_x[i] = x[x_start + four];
                    if NORM {
                        next_norm[i] = norm[four];
                    }
                }
            }
            for (var step = 0u; step < STEPS; step++) {
                let here = next;
                let in_tile = step * LANES + lane;
                let group = tile * TILE + in_tile;
                if step + 1u < STEPS || tile + 1u < tiles {
                    next = groups_at(starts, group + LANES, groups);
                } else if turn + 1u < args.passes {
                    next = groups_at(next_starts, lane, groups);
                }
                // Word by word without a loop: compilers that count a loop's turns do not unroll it.
                let x_at = in_tile * PITCH;
                var dots = words_dot(x_tile[x_at], x_tile[x_at + 1u], vec4<u32>(here.a.x, here.b.x, here.c.x, here.d.x));
                dots += words_dot(x_tile[x_at + 2u], x_tile[x_at + 3u], vec4<u32>(here.a.y, here.b.y, here.c.y, here.d.y));
                dots += words_dot(x_tile[x_at + 4u], x_tile[x_at + 5u], vec4<u32>(here.a.z, here.b.z, here.c.z, here.d.z));
                dots += words_dot(x_tile[x_at + 6u], x_tile[x_at + 7u], vec4<u32>(here.a.w, here.b.w, here.c.w, here.d.w));
                let at = starts + group;
                let scale = vec4<f32>(
                    scale_in(here.scales.x, at.x),
                    scale_in(here.scales.y, at.y),
                    scale_in(here.scales.z, at.z),
                    scale_in(here.scales.w, at.w),
                );
                // Beyond the end of a row x is zero, but what is there for a scale may be no number.
                if group < groups {
                    sums += scale * dots;
                }
            }
        }
        let reduced = reduce(thread, sums, squares);
        if lane == 0u {
            if NORM && turn == 0u {
                inverse = 1.0 / sqrt(reduced.squares / f32(args.columns) + args.eps);
            }
            finish(t, first, reduced.sums * inverse);
        }
        first = next_first;
    }
}
