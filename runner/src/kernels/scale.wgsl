// x *= factor * weight

struct Args {
    rows_of: u32,
    width: u32,
    factor: f32,
    has_weight: u32,
}

@group(0) @binding(1) var<uniform> args: Args;
// [1], or anything where has_weight is 0
@group(0) @binding(2) var<storage, read> weight: array<f32>;
// [T, width]
@group(0) @binding(3) var<storage, read_write> x: array<f32>;

@compute @workgroup_size(THREADS)
fn scale(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let at = cell(unit(group, groups), lane, args.width);
    if at.row >= live_rows(args.rows_of) || at.column >= args.width {
        return;
    }
    var factor = args.factor;
    if args.has_weight == 1u {
        factor *= weight[0];
    }
    x[at.row * args.width + at.column] *= factor;
}
