// What the kernels of a matrix times rows are given beside their buffers.

struct Args {
    rows_of: u32,
    columns: u32,
    // The first row of the piece that is bound, and how many it has.
    first_row: u32,
    rows: u32,
    out_width: u32,
    has_bias: u32,
}

@group(0) @binding(1) var<uniform> args: Args;
