// The largest of the values of a workgroup's threads; of equals, that of the first column.

// Stands for a token where there is none; `executor::NO_TOKEN`.
const NO_TOKEN: u32 = 0xffffffffu;
// The largest finite f32.
const LARGEST: f32 = 0x1.fffffep+127;

struct Best {
    value: f32,
    column: u32,
}

var<workgroup> best_values: array<f32, THREADS>;
var<workgroup> best_columns: array<u32, THREADS>;

fn best_of(lane: u32, mine: Best) -> Best {
    best_values[lane] = mine.value;
    best_columns[lane] = mine.column;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if lane < half {
            let other = best_values[lane + half];
            let other_column = best_columns[lane + half];
            let value = best_values[lane];
            if other > value || (other == value && other_column < best_columns[lane]) {
                best_values[lane] = other;
                best_columns[lane] = other_column;
            }
        }
        workgroupBarrier();
    }
    return Best(best_values[0], best_columns[0]);
}
