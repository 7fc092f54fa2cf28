// The RMS norm of every head, in place.

// [T, stride], of which `heads` runs of `width` from column `offset` on are changed.
@group(0) @binding(3) var<storage, read_write> x: array<f32>;

fn load(i: u32) -> f32 {
    return x[i];
}

fn store(i: u32, value: f32) {
    x[i] = value;
}

@compute @workgroup_size(THREADS)
fn head_norm(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    thread: Thread,
) {
    normalise(unit(group, groups), thread);
}
