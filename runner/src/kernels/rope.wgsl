// Turns the pairs of every head by the angle of the token's position and of the pair, in place.

struct Args {
    heads: u32,
    head_dim: u32,
    offset: u32,
    stride: u32,
    pairs: u32,
    // From one pair to the next, and between the values of one: 1 and `pairs`, or 2 and 1.
    step: u32,
    gap: u32,
}

@group(0) @binding(1) var<uniform> args: Args;
// [first + T, pairs] of (cos, sin), those of this call from row live.first on
@group(0) @binding(2) var<storage, read> turns: array<vec2<f32>>;
// [T, stride], of which `heads` runs of `head_dim` from column `offset` on are changed.
@group(0) @binding(3) var<storage, read_write> x: array<f32>;

@compute @workgroup_size(THREADS)
fn rope(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let pairs = args.pairs;
    let at = cell(unit(group, groups), lane, args.heads * pairs);
    if at.row >= live.tokens || at.column >= args.heads * pairs {
        return;
    }
    let i = at.column % pairs;
    let head = at.column / pairs;
    let first = at.row * args.stride + args.offset + head * args.head_dim + i * args.step;
    let second = first + args.gap;
    let turn = turns[(live.first + at.row) * pairs + i];
    let a = x[first];
    let b = x[second];
    x[first] = a * turn.x - b * turn.y;
    x[second] = b * turn.x + a * turn.y;
}
