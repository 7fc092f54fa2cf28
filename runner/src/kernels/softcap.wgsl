// x = cap * tanh(x / cap)

struct Args {
    rows_of: u32,
    width: u32,
    cap: f32,
}

@group(0) @binding(1) var<uniform> args: Args;
// [T, width]
@group(0) @binding(2) var<storage, read_write> x: array<f32>;

@compute @workgroup_size(THREADS)
fn softcap(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let at = cell(unit(group, groups), lane, args.width);
    if at.row >= live_rows(args.rows_of) || at.column >= args.width {
        return;
    }
    let i = at.row * args.width + at.column;
    x[i] = softcapped(x[i], args.cap);
}
