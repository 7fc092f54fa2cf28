// Few tokens: the weight is read once a token, word by word. A workgroup has THREADS / LANES rows with LANES threads
// each; neighbouring threads read neighbouring words, which are of one row, or of many where they lie transposed.

// A power of two.
override LANES: u32;
override ROWS: u32 = THREADS / LANES;

// [ROWS, LANES]
var<workgroup> partial: array<f32, THREADS>;

@compute @workgroup_size(THREADS)
fn matvec(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let blocks = (args.rows + ROWS - 1u) / ROWS;
    let block = unit(group, groups);
    let t = block / blocks;
    if t >= live_rows(args.rows_of) {
        return;
    }
    let first_row = (block % blocks) * ROWS;
    let r = select(lane / LANES, lane % ROWS, TRANSPOSED);
    let part = select(lane % LANES, lane / ROWS, TRANSPOSED);
    var sum = 0.0;
    if first_row + r < args.rows {
        sum = shares(first_row + r, t * args.columns, part, LANES);
    }
    partial[r * LANES + part] = sum;
    workgroupBarrier();
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        if lane % LANES < half {
            partial[lane] += partial[lane + half];
        }
        workgroupBarrier();
    }
    let row = first_row + lane / LANES;
    if lane % LANES == 0u && row < args.rows {
        put(t, row, partial[lane]);
    }
}
