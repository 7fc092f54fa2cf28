// out[t, :] = table[tokens[t], :], for those tokens whose row lies in this piece of the table.

struct Args {
    width: u32,
    first_row: u32,
    rows: u32,
}

@group(0) @binding(1) var<uniform> args: Args;
// [first + T], those of this call from live.first on
@group(0) @binding(4) var<storage, read> tokens: array<u32>;
// [T, width]
@group(0) @binding(5) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(THREADS)
fn gather(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let at = cell(unit(group, groups), lane, args.width);
    if at.row >= live.tokens || at.column >= args.width {
        return;
    }
    // A token before the piece wraps round to a row far after it.
    let row = tokens[live.first + at.row] - args.first_row;
    if row >= args.rows {
        return;
    }
    let table = Matrix(args.rows, args.width);
    let in_group = at.column % GROUP;
    let w = at.column / GROUP * WORDS_PER_GROUP + in_group / CODES_PER_WORD;
    let value = code(word_of(table, row, w), in_group % CODES_PER_WORD);
    out[at.row * args.width + at.column] = value * scale_of(table, row, w);
}
