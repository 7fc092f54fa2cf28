// out[t, i] = act(gate[t, i]) * up[t, i]

struct Args {
    rows_of: u32,
    width: u32,
    gate_offset: u32,
    gate_stride: u32,
    up_offset: u32,
    up_stride: u32,
    // 0: SiLU; 1: GELU with the tanh approximation.
    activation: u32,
}

@group(0) @binding(1) var<uniform> args: Args;
// [T, gate_stride], gates in columns gate_offset.. of `width`
@group(0) @binding(2) var<storage, read> gates: array<f32>;
// [T, up_stride], what they let through in columns up_offset.. of `width`
@group(0) @binding(3) var<storage, read> ups: array<f32>;
// [T, width]
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

fn silu(x: f32) -> f32 {
    // Beyond 80 the result is as good as zero, and exp would overflow soon after.
    return x / (1.0 + exp(min(-x, 80.0)));
}

fn gelu_tanh(x: f32) -> f32 {
    // sqrt(2 / pi). The clamp is for tanh, as in `softcapped`.
    let inner = 0.7978845608 * (x + 0.044715 * x * x * x);
    return 0.5 * x * (1.0 + tanh(clamp(inner, -15.0, 15.0)));
}

fn activate(x: f32) -> f32 {
    if args.activation == 1u {
        return gelu_tanh(x);
    }
    return silu(x);
}

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
    out[at.row * args.width + at.column] = activate(gate) * up;
}
