// The sums that the threads of a workgroup have come to: within subgroups, of whatever size, where those are no larger
// than LANES; what is left goes through workgroup memory.

struct Thread {
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_size) subgroup_size: u32,
    @builtin(subgroup_invocation_id) subgroup_lane: u32,
}

fn reduce(thread: Thread, sums: vec4<f32>, squares: f32) -> Reduced {
    let lane = thread.lane;
    // What was read here last time may be overwritten now.
    workgroupBarrier();
    // Threads of one subgroup follow each other, so a subgroup no larger than LANES has the rows of one team.
    var step = 1u;
    var sum = sums;
    if thread.subgroup_size <= LANES {
        step = thread.subgroup_size;
        sum = subgroupAdd(sums);
    }
    sums_of[lane] = sum;
    let square = subgroupAdd(squares);
    if thread.subgroup_lane == 0u {
        squares_of[lane] = square;
    }
    workgroupBarrier();
    var result = Reduced();
    if lane % LANES == 0u {
        for (var i = 0u; i < LANES; i += step) {
            result.sums += sums_of[lane + i];
        }
        if NORM {
            for (var i = 0u; i < THREADS; i += thread.subgroup_size) {
                result.squares += squares_of[i];
            }
        }
    }
    return result;
}
