// out[t, :] += scale * x[t, :] / sqrt(mean(x[t, :]^2) + eps) * weight

// [T, width]
@group(0) @binding(3) var<storage, read> x: array<f32>;
// [T, width]
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

fn load(i: u32) -> f32 {
    return x[i];
}

fn store(i: u32, value: f32) {
    out[i] += args.scale * value;
}

@compute @workgroup_size(THREADS)
fn norm_add(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    thread: Thread,
) {
    normalise(unit(group, groups), thread);
}
