// Activations of gates.

fn silu(x: f32) -> f32 {
    // Beyond 80 the result is as good as zero, and exp would overflow soon after.
    return x / (1.0 + exp(min(-x, 80.0)));
}

fn gelu_tanh(x: f32) -> f32 {
    // sqrt(2 / pi). The clamp is for tanh, as in `softcapped`.
    let inner = 0.7978845608 * (x + 0.044715 * x * x * x);
    return 0.5 * x * (1.0 + tanh(clamp(inner, -15.0, 15.0)));
}

// 0: SiLU; 1: GELU with the tanh approximation.
fn activated(activation: u32, x: f32) -> f32 {
    if activation == 1u {
        return gelu_tanh(x);
    }
    return silu(x);
}
