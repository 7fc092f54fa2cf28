// The column of the largest value in the last row of x; of equals, the first.

struct Args {
    width: u32,
}

@group(0) @binding(1) var<uniform> args: Args;
// [outputs, width]
@group(0) @binding(2) var<storage, read> x: array<f32>;
// [1]
@group(0) @binding(3) var<storage, read_write> token: array<u32>;

var<workgroup> best_values: array<f32, THREADS>;
var<workgroup> best_columns: array<u32, THREADS>;

@compute @workgroup_size(THREADS)
fn argmax(@builtin(local_invocation_index) lane: u32) {
    let row = (live.outputs - 1u) * args.width;
    // A thread without columns repeats the first one, which changes nothing.
    var column = select(0u, lane, lane < args.width);
    var value = x[row + column];
    // Ascending, so that of equals the first stays.
    for (var i = lane + THREADS; i < args.width; i += THREADS) {
        let candidate = x[row + i];
        if candidate > value {
            value = candidate;
            column = i;
        }
    }
    best_values[lane] = value;
    best_columns[lane] = column;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if lane < half {
            let other = best_values[lane + half];
            let other_column = best_columns[lane + half];
            let mine = best_values[lane];
            if other > mine || (other == mine && other_column < best_columns[lane]) {
                best_values[lane] = other;
                best_columns[lane] = other_column;
            }
        }
        workgroupBarrier();
    }
    if lane == 0u {
        token[0] = best_columns[0];
    }
}
