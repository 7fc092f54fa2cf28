// out = x, or its last rows where out has fewer

struct Args {
    from_rows_of: u32,
    rows_of: u32,
    width: u32,
}

@group(0) @binding(1) var<uniform> args: Args;
// [T, width]
@group(0) @binding(2) var<storage, read> x: array<f32>;
// [T, width], or [outputs, width] of more tokens
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(THREADS)
fn copy(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let at = cell(unit(group, groups), lane, args.width);
    if at.row >= live_rows(args.rows_of) || at.column >= args.width {
        return;
    }
    let source = live_rows(args.from_rows_of) - live_rows(args.rows_of) + at.row;
    out[at.row * args.width + at.column] = x[source * args.width + at.column];
}
