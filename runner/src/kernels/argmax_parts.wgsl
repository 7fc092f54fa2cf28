// The largest value, and its column, of each of PARTS parts of the last row of x; of equals, the first.

struct Args {
    width: u32,
    parts: u32,
}

@group(0) @binding(1) var<uniform> args: Args;
// [outputs, width]
@group(0) @binding(2) var<storage, read> x: array<f32>;
// [parts]: the value's bits and the column
@group(0) @binding(3) var<storage, read_write> best: array<vec2<u32>>;

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
    var column = min(select(start, start + lane, start + lane < end), args.width - 1u);
    var value = x[row + column];
    // Ascending, so that of equals the first stays.
    for (var i = start + lane + THREADS; i < end; i += THREADS) {
        let candidate = x[row + i];
        if candidate > value {
            value = candidate;
            column = i;
        }
    }
    let found = best_of(lane, Best(value, column));
    if lane == 0u {
        best[part] = vec2<u32>(bitcast<u32>(found.value), found.column);
    }
}
