// out[t, c] = gate[t, c] * (bias[c] + sum_j kernel[c, j] * history[position - window + 1 + j, c])

struct Args {
    width: u32,
    window: u32,
    gate_offset: u32,
    gate_stride: u32,
    has_bias: u32,
}

@group(0) @binding(1) var<uniform> args: Args;
// [positions, width]: position p is in row p % positions.
@group(0) @binding(2) var<storage, read> history: array<f32>;
// [width, window]; the last of a row is for the token's own position.
@group(0) @binding(3) var<storage, read> weights: array<f32>;
// [width], or anything where has_bias is 0
@group(0) @binding(4) var<storage, read> bias: array<f32>;
// [T, gate_stride], gates in columns gate_offset.. of `width`
@group(0) @binding(5) var<storage, read> gates: array<f32>;
// [T, width]
@group(0) @binding(6) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(THREADS)
fn convolve(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let at = cell(unit(group, groups), lane, args.width);
    if at.row >= live.tokens || at.column >= args.width {
        return;
    }
    let positions = arrayLength(&history) / args.width;
    // Positions first..end are seen; what would come before position 0 counts as zero.
    let end = live.past + at.row + 1u;
    let seen = min(end, args.window);
    var sum = 0.0;
    if args.has_bias == 1u {
        sum = bias[at.column];
    }
    let last_weight = (at.column + 1u) * args.window;
    for (var back = seen; back > 0u; back--) {
        let row = (end - back) % positions;
        sum += weights[last_weight - back] * history[row * args.width + at.column];
    }
    let gate = gates[at.row * args.gate_stride + args.gate_offset + at.column];
    out[at.row * args.width + at.column] = gate * sum;
}
