// The tiles of matmul.wgsl in f32: values as they are.

alias Tile4 = vec4<f32>;

fn prepare(first_token: u32, tokens: u32, first_row: u32, lane: u32) {}

fn x_to_tile(four: u32, x: vec4<f32>) -> Tile4 {
    return x;
}

fn w_to_tile(four: u32, w: vec4<f32>) -> Tile4 {
    return w;
}

fn from_tiles(token: u32, four: u32, sums: vec4<f32>) -> vec4<f32> {
    return sums;
}
