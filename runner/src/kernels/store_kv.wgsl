// Copies the keys and values of this call's tokens to their positions in the cache, a ring of rows.

struct Args {
    width: u32,
    k_offset: u32,
    k_stride: u32,
    v_offset: u32,
    v_stride: u32,
}

@group(0) @binding(1) var<uniform> args: Args;
// [T, k_stride], keys in columns k_offset.. of `width`
@group(0) @binding(2) var<storage, read> k: array<f32>;
// [T, v_stride], values in columns v_offset.. of `width`
@group(0) @binding(3) var<storage, read> v: array<f32>;
// [positions, width], width = kv_heads * head_dim
@group(0) @binding(4) var<storage, read_write> keys: array<f32>;
// [positions, width]
@group(0) @binding(5) var<storage, read_write> values: array<f32>;

@compute @workgroup_size(THREADS)
fn store_kv(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let at = cell(unit(group, groups), lane, args.width);
    if at.row >= live.tokens || at.column >= args.width {
        return;
    }
    let positions = arrayLength(&keys) / args.width;
    let target_index = (live.past + at.row) % positions * args.width + at.column;
    keys[target_index] = k[at.row * args.k_stride + args.k_offset + at.column];
    values[target_index] = v[at.row * args.v_stride + args.v_offset + at.column];
}
