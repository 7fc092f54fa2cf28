// out[t, i] = silu(x[t, i]) * x[t, width + i]

struct Args {
    rows_of: u32,
    width: u32,
}

@group(0) @binding(1) var<uniform> args: Args;
// [T, 2 * width]: gates, then what they let through
@group(0) @binding(2) var<storage, read> x: array<f32>;
// [T, width]
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

fn silu(x: f32) -> f32 {
    // Beyond 80 the result is as good as zero, and exp would overflow soon after.
    return x / (1.0 + exp(min(-x, 80.0)));
}

@compute @workgroup_size(256)
fn gate(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let at = cell(unit(group, groups), lane, args.width);
    if at.row >= live_rows(args.rows_of) || at.column >= args.width {
        return;
    }
    let i = at.row * 2u * args.width + at.column;
    out[at.row * args.width + at.column] = silu(x[i]) * x[i + args.width];
}
