// RMS norm of runs of `width` values. A kernel adds `load` and `store`, which know where the runs live, and a way to
// sum over its threads.

struct Args {
    rows_of: u32,
    heads: u32,
    width: u32,
    offset: u32,
    stride: u32,
    eps: f32,
    has_weight: u32,
    // Of norm_add.wgsl
    scale: f32,
}

@group(0) @binding(1) var<uniform> args: Args;
// [width], or anything where has_weight is 0
@group(0) @binding(2) var<storage, read> weight: array<f32>;

// One workgroup a run: head `unit % heads` of row `unit / heads`. The unit stands apart from the thread, so that browsers
// see that a whole workgroup leaves where it is past the end: nobody may miss the barriers of a sum.
fn normalise(unit: u32, thread: Thread) {
    let lane = thread.lane;
    let row = unit / args.heads;
    if row >= live_rows(args.rows_of) {
        return;
    }
    let start = row * args.stride + args.offset + (unit % args.heads) * args.width;
    var sum = 0.0;
    for (var i = lane; i < args.width; i += THREADS) {
        let x = load(start + i);
        sum += x * x;
    }
    let factor = 1.0 / sqrt(sum_of_all(thread, sum) / f32(args.width) + args.eps);
    for (var i = lane; i < args.width; i += THREADS) {
        var y = load(start + i) * factor;
        if args.has_weight == 1u {
            y *= weight[i];
        }
        store(start + i, y);
    }
}
