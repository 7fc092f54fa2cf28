// Joins what the workgroups of attend_split.wgsl have left: one workgroup a token and head.

struct Args {
    heads: u32,
    head_dim: u32,
    window: u32,
    share: u32,
    most_shares: u32,
}

@group(0) @binding(1) var<uniform> args: Args;
// [T, heads, shares, head_dim + 2]: the mix, the highest score and the sum
@group(0) @binding(2) var<storage, read> parts: array<f32>;
// [T, heads, head_dim]
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(THREADS)
fn merge(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let shares = shares_of(args.window, args.share, args.most_shares);
    let row = unit(group, groups);
    if row >= live.tokens * args.heads {
        return;
    }
    let stride = args.head_dim + 2u;
    let first = row * shares * stride;
    var highest = -1e30;
    for (var i = 0u; i < shares; i++) {
        highest = max(highest, parts[first + i * stride + args.head_dim]);
    }
    for (var d = lane; d < args.head_dim; d += THREADS) {
        var sum = 0.0;
        var total = 0.0;
        for (var i = 0u; i < shares; i++) {
            let part = first + i * stride;
            let fade = exp(parts[part + args.head_dim] - highest);
            sum += fade * parts[part + d];
            total += fade * parts[part + args.head_dim + 1u];
        }
        out[row * args.head_dim + d] = sum / total;
    }
}
