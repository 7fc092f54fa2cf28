// The sum over a workgroup: within subgroups, of whatever size, then over their sums.

struct Thread {
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
    @builtin(subgroup_invocation_id) subgroup_lane: u32,
}

// One value a subgroup, of which there may be as many as threads.
var<workgroup> partial: array<f32, THREADS>;

fn sum_of_all(thread: Thread, value: f32) -> f32 {
    let sum = subgroupAdd(value);
    if thread.subgroup_lane == 0u {
        partial[thread.subgroup] = sum;
    }
    workgroupBarrier();
    var total = 0.0;
    for (var i = 0u; i < thread.subgroups; i++) {
        total += partial[i];
    }
    return total;
}
