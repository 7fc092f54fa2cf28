// out = the last `outputs` rows of x

struct Args {
    width: u32,
}

@group(0) @binding(1) var<uniform> args: Args;
// [tokens, width]
@group(0) @binding(2) var<storage, read> x: array<f32>;
// [outputs, width]
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(256)
fn last_rows(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let at = cell(unit(group, groups), lane, args.width);
    if at.row >= live.outputs || at.column >= args.width {
        return;
    }
    let source = live.tokens - live.outputs + at.row;
    out[at.row * args.width + at.column] = x[source * args.width + at.column];
}
