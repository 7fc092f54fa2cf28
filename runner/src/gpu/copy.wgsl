// to = from, for measuring how fast a device reads and writes.

// [n] of sixteen bytes
@group(0) @binding(0) var<storage, read> source: array<vec4<u32>>;
// [n]
@group(0) @binding(1) var<storage, read_write> copied: array<vec4<u32>>;

@compute @workgroup_size(256)
fn copy(
    @builtin(global_invocation_id) at: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let threads = groups.x * 256u;
    for (var i = at.x; i < arrayLength(&copied); i += threads) {
        copied[i] = source[i];
    }
}
