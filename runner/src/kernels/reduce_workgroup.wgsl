// The sums that the threads of a workgroup have come to, through workgroup memory.

struct Thread {
    @builtin(local_invocation_index) lane: u32,
}

fn reduce(thread: Thread, sums: vec4<f32>, squares: f32) -> Reduced {
    let lane = thread.lane;
    // What was read here last time may be overwritten now.
    workgroupBarrier();
    sums_of[lane] = sums;
    squares_of[lane] = squares;
    workgroupBarrier();
    // Eighths first: two barriers are fewer than those of a tree.
    let step = LANES / 8u;
    if lane % LANES < step {
        var sum = sums_of[lane];
        for (var i = 1u; i < 8u; i++) {
            sum += sums_of[lane + i * step];
        }
        sums_of[lane] = sum;
    }
    if NORM && lane < THREADS / 8u {
        var sum = squares_of[lane];
        for (var i = 1u; i < 8u; i++) {
            sum += squares_of[lane + i * (THREADS / 8u)];
        }
        squares_of[lane] = sum;
    }
    workgroupBarrier();
    var result = Reduced();
    if lane % LANES == 0u {
        for (var i = 0u; i < step; i++) {
            result.sums += sums_of[lane + i];
        }
        if NORM {
            for (var i = 0u; i < THREADS / 8u; i++) {
                result.squares += squares_of[i];
            }
        }
    }
    return result;
}
