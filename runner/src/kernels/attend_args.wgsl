// What attend.wgsl and attend_tiles.wgsl are given beside their buffers.

struct Args {
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    offset: u32,
    stride: u32,
    // 0: every earlier position is seen.
    window: u32,
    scale: f32,
    // 0: scores stay as they are.
    softcap: f32,
}

@group(0) @binding(1) var<uniform> args: Args;
