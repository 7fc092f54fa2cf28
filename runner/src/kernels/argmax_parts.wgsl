// The largest value, and its column, of each of PARTS parts of the last row of x; of equals, the first. A value that is
// no finite number is the largest, and its column NO_TOKEN; -inf is what a token has that must not come.

struct Args {
    width: u32,
    parts: u32,
}

@group(0) @binding(1) var<uniform> args: Args;
// [outputs, width] f32, as bits: what is no number need not survive as one
@group(0) @binding(2) var<storage, read> x: array<u32>;
// [parts]: the value's bits and the column
@group(0) @binding(3) var<storage, read_write> best: array<vec2<u32>>;

fn best_at(row: u32, column: u32) -> Best {
    let bits = x[row + column];
    if (bits & 0x7f800000u) == 0x7f800000u && bits != 0xff800000u {
        return Best(LARGEST, NO_TOKEN);
    }
    return Best(bitcast<f32>(bits), column);
}

@compute @workgroup_size(THREADS)
fn argmax_parts(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let part = unit(group, groups);
    if part >= args.parts {
        return;
    }
    let row = (live.outputs - 1u) * args.width;
    let each = (args.width + args.parts - 1u) / args.parts;
    let start = part * each;
    let end = min(start + each, args.width);
    // A thread without columns repeats the first one, which changes nothing.
    var mine = best_at(row, min(select(start, start + lane, start + lane < end), args.width - 1u));
    // Ascending, so that of equals the first stays.
    for (var i = start + lane + THREADS; i < end; i += THREADS) {
        let candidate = best_at(row, i);
        if candidate.value > mine.value {
            mine = candidate;
        }
    }
    let found = best_of(lane, mine);
    if lane == 0u {
        best[part] = vec2<u32>(bitcast<u32>(found.value), found.column);
    }
}
