// out[t, :] = sum_k shares[t, k] * x[t * chosen + k, :]

struct Args {
    chosen: u32,
    width: u32,
}

@group(0) @binding(1) var<uniform> args: Args;
// [T * chosen, width]
@group(0) @binding(2) var<storage, read> x: array<f32>;
// [T, chosen]
@group(0) @binding(3) var<storage, read> shares: array<f32>;
// [T, width]
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(THREADS)
fn mix_experts(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let at = cell(unit(group, groups), lane, args.width);
    if at.row >= live.tokens || at.column >= args.width {
        return;
    }
    var sum = 0.0;
    for (var k = 0u; k < args.chosen; k++) {
        let r = at.row * args.chosen + k;
        sum += shares[r] * x[r * args.width + at.column];
    }
    out[at.row * args.width + at.column] = sum;
}
