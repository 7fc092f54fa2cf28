// The column of the largest of the parts of argmax_parts.wgsl, which is the token that follows this call's; NO_TOKEN where
// all are -inf.

struct Args {
    parts: u32,
}

@group(0) @binding(1) var<uniform> args: Args;
// [parts]: the value's bits and the column
@group(0) @binding(2) var<storage, read> best: array<vec2<u32>>;
// [first + T + 1]: the call's from live.first on, then this one
@group(0) @binding(3) var<storage, read_write> tokens: array<u32>;

@compute @workgroup_size(THREADS)
fn argmax(@builtin(local_invocation_index) lane: u32) {
    let first = best[min(lane, args.parts - 1u)];
    var mine = Best(bitcast<f32>(first.x), first.y);
    // Parts ascend, so that of equals the first stays.
    for (var i = lane + THREADS; i < args.parts; i += THREADS) {
        let value = bitcast<f32>(best[i].x);
        if value > mine.value {
            mine = Best(value, best[i].y);
        }
    }
    let found = best_of(lane, mine);
    if lane == 0u {
        tokens[live.first + live.tokens] = select(found.column, NO_TOKEN, bitcast<u32>(found.value) == 0xff800000u);
    }
}
