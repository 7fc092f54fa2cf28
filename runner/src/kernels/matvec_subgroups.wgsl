// matvec.wgsl without workgroup memory: a workgroup has as many rows, and a subgroup, of whatever size, takes one at a
// time.

override LANES: u32;
override ROWS: u32 = THREADS / LANES;

@compute @workgroup_size(THREADS)
fn matvec(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
    @builtin(subgroup_invocation_id) lane: u32,
    @builtin(subgroup_size) lanes: u32,
) {
    let blocks = (args.rows + ROWS - 1u) / ROWS;
    let block = unit(group, groups);
    let t = block / blocks;
    if t >= live_rows(args.rows_of) {
        return;
    }
    let end = min((block % blocks + 1u) * ROWS, args.rows);
    for (var row = (block % blocks) * ROWS + subgroup; row < end; row += subgroups) {
        let sum = subgroupAdd(shares(row, t * args.columns, lane, lanes));
        if lane == 0u {
            put(t, row, sum);
        }
    }
}
