// Writes x * by of this call's tokens at their positions in a ring.

struct Args {
    width: u32,
    x_offset: u32,
    x_stride: u32,
    by_offset: u32,
    by_stride: u32,
}

@group(0) @binding(1) var<uniform> args: Args;
// [T, x_stride], columns x_offset.. of `width`
@group(0) @binding(2) var<storage, read> x: array<f32>;
// [T, by_stride], columns by_offset.. of `width`
@group(0) @binding(3) var<storage, read> by: array<f32>;
// [positions, width]: position p is in row p % positions.
@group(0) @binding(4) var<storage, read_write> history: array<f32>;

@compute @workgroup_size(THREADS)
fn store_product(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let at = cell(unit(group, groups), lane, args.width);
    if at.row >= live.tokens || at.column >= args.width {
        return;
    }
    let positions = arrayLength(&history) / args.width;
    let row = (live.past + at.row) % positions;
    let product = x[at.row * args.x_stride + args.x_offset + at.column]
        * by[at.row * args.by_stride + args.by_offset + at.column];
    history[row * args.width + at.column] = product;
}
