// The sum over a workgroup, by a tree in workgroup memory.

struct Thread {
    @builtin(local_invocation_index) lane: u32,
}

var<workgroup> partial: array<f32, THREADS>;

fn sum_of_all(thread: Thread, value: f32) -> f32 {
    let lane = thread.lane;
    partial[lane] = value;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if lane < half {
            partial[lane] += partial[lane + half];
        }
        workgroupBarrier();
    }
    return partial[0];
}
