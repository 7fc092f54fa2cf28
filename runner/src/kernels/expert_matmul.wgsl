// out[r, n] = sum_k x[r, k] * weight[e, n, k] + bias[e, n], where e is the expert of row r: only what is chosen is read.
// A workgroup has THREADS / LANES rows n of one row r, with LANES threads each; neighbouring threads read neighbouring words.

// A power of two.
override LANES: u32;
override ROWS: u32 = THREADS / LANES;

struct Args {
    // Rows r of a token.
    per_token: u32,
    // How many of them read the same row of x: all of a token's, or one.
    sharing: u32,
    columns: u32,
    // Rows n of an expert.
    expert_rows: u32,
    // The piece of the weight [experts * expert_rows, columns] that is bound.
    first_row: u32,
    rows: u32,
    has_bias: u32,
}

@group(0) @binding(1) var<uniform> args: Args;
// [T, columns], or [T * per_token, columns]
@group(0) @binding(4) var<storage, read> x: array<f32>;
// [T * per_token]
@group(0) @binding(5) var<storage, read> experts: array<f32>;
// [experts * expert_rows], or anything where has_bias is 0
@group(0) @binding(6) var<storage, read> bias: array<f32>;
// [T * per_token, expert_rows]
@group(0) @binding(7) var<storage, read_write> out: array<f32>;

var<workgroup> partial: array<f32, THREADS>;

@compute @workgroup_size(THREADS)
fn expert_matmul(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let blocks = (args.expert_rows + ROWS - 1u) / ROWS;
    let block = unit(group, groups);
    let r = block / blocks;
    if r >= live.tokens * args.per_token {
        return;
    }
    let n = (block % blocks) * ROWS + lane / LANES;
    let whole_row = u32(experts[r]) * args.expert_rows + n;
    // A row before the piece wraps round to one far after it.
    let row = whole_row - args.first_row;
    let is_mine = n < args.expert_rows && row < args.rows;
    let x_start = r / args.sharing * args.columns;
    var sum = 0.0;
    if is_mine {
        let matrix = Matrix(args.rows, args.columns);
        let words = words_per_row(matrix);
        for (var w = lane % LANES; w < words; w += LANES) {
            let word = word_of(matrix, row, w);
            let at = span(w, args.columns);
            var share = 0.0;
            for (var i = 0u; i < at.count; i++) {
                share += code(word, i) * x[x_start + at.start + i];
            }
            sum += share * scale_of(matrix, row, w);
        }
    }
    partial[lane] = sum;
    workgroupBarrier();
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        if lane % LANES < half {
            partial[lane] += partial[lane + half];
        }
        workgroupBarrier();
    }
    if lane % LANES == 0u && is_mine {
        var y = partial[lane];
        if args.has_bias == 1u {
            y += bias[whole_row];
        }
        out[r * args.expert_rows + n] = y;
    }
}
