// out[t, i] = act(gate[t, i]) * up[t, i]

struct Args {
    rows_of: u32,
    width: u32,
    gate_offset: u32,
    gate_stride: u32,
    up_offset: u32,
    up_stride: u32,
    // As in activation.wgsl.
    activation: u32,
}

@group(0) @binding(1) var<uniform> args: Args;
// [T, gate_stride], gates in columns gate_offset.. of `width`
@group(0) @binding(2) var<storage, read> gates: array<f32>;
// [T, up_stride], what they let through in columns up_offset.. of `width`
@group(0) @binding(3) var<storage, read> ups: array<f32>;
// [T, width]
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(THREADS)
fn gate(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let at = cell(unit(group, groups), lane, args.width);
    if at.row >= live_rows(args.rows_of) || at.column >= args.width {
        return;
    }
    let gate = gates[at.row * args.gate_stride + args.gate_offset + at.column];
    let up = ups[at.row * args.up_stride + args.up_offset + at.column];
    out[at.row * args.width + at.column] = activated(args.activation, gate) * up;
}
