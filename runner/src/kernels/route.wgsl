// Which experts a token goes through, and how much each of them counts. One workgroup a token.

struct Args {
    count: u32,
    chosen: u32,
    // Whether the shares of those chosen add up to 1, and not those of all.
    normalised: u32,
}

@group(0) @binding(1) var<uniform> args: Args;
// [T, count]
@group(0) @binding(2) var<storage, read> logits: array<f32>;
// [T, chosen]: numbers of experts, the most probable first
@group(0) @binding(3) var<storage, read_write> experts: array<f32>;
// [T, chosen]
@group(0) @binding(4) var<storage, read_write> shares: array<f32>;

const NONE: u32 = 0xffffffffu;
var<workgroup> best_values: array<f32, THREADS>;
var<workgroup> best_indices: array<u32, THREADS>;

// Whether a comes before b: the larger, of equals the first.
fn before(a: f32, a_index: u32, b: f32, b_index: u32) -> bool {
    return a_index != NONE && (b_index == NONE || a > b || (a == b && a_index < b_index));
}

@compute @workgroup_size(THREADS)
fn route(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let t = unit(group, groups);
    if t >= live.tokens {
        return;
    }
    let row = t * args.count;
    let out = t * args.chosen;
    var largest = 0.0;
    var last = 0.0;
    var last_index = NONE;
    var chosen_sum = 0.0;
    for (var k = 0u; k < args.chosen; k++) {
        // The next in order after the last one that was chosen.
        var value = 0.0;
        var index = NONE;
        for (var i = lane; i < args.count; i += THREADS) {
            let candidate = logits[row + i];
            let left = last_index == NONE || before(last, last_index, candidate, i);
            if left && before(candidate, i, value, index) {
                value = candidate;
                index = i;
            }
        }
        best_values[lane] = value;
        best_indices[lane] = index;
        workgroupBarrier();
        for (var half = THREADS / 2u; half > 0u; half /= 2u) {
            if lane < half {
                let other = best_values[lane + half];
                let other_index = best_indices[lane + half];
                if before(other, other_index, best_values[lane], best_indices[lane]) {
                    best_values[lane] = other;
                    best_indices[lane] = other_index;
                }
            }
            workgroupBarrier();
        }
        last = best_values[0];
        last_index = best_indices[0];
        workgroupBarrier();
        if k == 0u {
            largest = last;
        }
        let share = exp(last - largest);
        chosen_sum += share;
        if lane == 0u {
            experts[out + k] = f32(last_index);
            shares[out + k] = share;
        }
    }
    // The sum over all, of which each lane has some.
    var sum = 0.0;
    for (var i = lane; i < args.count; i += THREADS) {
        sum += exp(logits[row + i] - largest);
    }
    best_values[lane] = sum;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if lane < half {
            best_values[lane] += best_values[lane + half];
        }
        workgroupBarrier();
    }
    let total = select(best_values[0], chosen_sum, args.normalised == 1u);
    if lane == 0u {
        for (var k = 0u; k < args.chosen; k++) {
            shares[out + k] /= total;
        }
    }
}
