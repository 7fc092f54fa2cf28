// x in f16, which ends at 65504 and loses digits below 2^-14. No model promises to stay within: every row is multiplied
// by a power of two of its own.

struct Args {
    rows_of: u32,
    columns: u32,
}

@group(0) @binding(1) var<uniform> args: Args;
// [T, columns / 4] fours
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
// [T, columns / 4]
@group(0) @binding(3) var<storage, read_write> halves: array<vec4<f16>>;
// [T]
@group(0) @binding(4) var<storage, read_write> factors: array<f32>;

var<workgroup> bounds: array<f32, THREADS>;

// The power of two that brings values of at most `bound` below 2^15.
fn factor_of(bound: f32) -> f32 {
    let exponent = (bitcast<u32>(bound) >> 23u) & 255u;
    // 2^(14 - (exponent - 127)), kept among the normal numbers.
    return bitcast<f32>(min(268u - exponent, 254u) << 23u);
}

@compute @workgroup_size(THREADS)
fn halve(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let t = unit(group, groups);
    if t >= live_rows(args.rows_of) {
        return;
    }
    let fours = args.columns / 4u;
    let start = t * fours;
    var most = vec4<f32>();
    for (var i = lane; i < fours; i += THREADS) {
        most = max(most, abs(x[start + i]));
    }
    bounds[lane] = max(max(most.x, most.y), max(most.z, most.w));
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if lane < half {
            bounds[lane] = max(bounds[lane], bounds[lane + half]);
        }
        workgroupBarrier();
    }
    let factor = factor_of(bounds[0]);
    for (var i = lane; i < fours; i += THREADS) {
        halves[start + i] = vec4<f16>(x[start + i] * factor);
    }
    if lane == 0u {
        factors[t] = factor;
    }
}
