// Stands before every kernel: the live lengths, and how workgroups and their threads find their place.

// `executor::Live`, and where in the buffers of tokens and angles the call begins: several calls may be given at once.
struct Live {
    tokens: u32,
    past: u32,
    outputs: u32,
    first: u32,
}

@group(0) @binding(0) var<uniform> live: Live;

// Threads of a workgroup: what the kernel wants, or less where the device allows less. A power of two, at least 64.
override THREADS: u32;

// The rows in use of a slot whose rows are tokens (`rows_of` = 0), outputs (1) or so many for each token (from 2 on).
fn live_rows(rows_of: u32) -> u32 {
    if rows_of == 1u {
        return live.outputs;
    }
    return live.tokens * max(rows_of, 1u);
}

// The inverse of `grid::fold`: which unit of work this workgroup has. The last few may be past the end.
fn unit(group: vec3<u32>, groups: vec3<u32>) -> u32 {
    return group.y * groups.x + group.x;
}

struct Cell {
    row: u32,
    column: u32,
}

// Elementwise kernels: every row is cut into units of THREADS columns, one a thread.
fn cell(unit: u32, lane: u32, width: u32) -> Cell {
    let units_per_row = (width + THREADS - 1u) / THREADS;
    return Cell(unit / units_per_row, (unit % units_per_row) * THREADS + lane);
}

// cap * tanh(x / cap). Beyond 15 the hyperbolic tangent is 1 in f32, and exp would overflow in some tanh long after.
fn softcapped(x: f32, cap: f32) -> f32 {
    return cap * tanh(clamp(x / cap, -15.0, 15.0));
}
