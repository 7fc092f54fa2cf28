//! Token mixing by a short convolution.

use serde::{Deserialize, Serialize};

use super::{Linear, Weight};

/// A gated causal convolution over the last few tokens, each channel by itself (LFM2).
///
/// `input` makes `b`, `c` and `x` of each token, `hidden` values each. With `y = b * x`, the output is
/// `output(c * (bias + sum_j kernel[:, j] * y[t - length + 1 + j]))`, where tokens before the first are zero.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ShortConv {
    /// `[3 * hidden, hidden]`: rows of `b`, `c` and `x`.
    pub input: Linear,
    /// `[hidden, 1, length]`; the last column is the token's own.
    pub kernel: Weight,
    /// `[hidden]`.
    pub bias: Option<Weight>,
    /// `[hidden, hidden]`.
    pub output: Linear,
}

impl ShortConv {
    /// Tokens that it looks at, the current one included.
    pub fn length(&self) -> u32 {
        u32::try_from(self.kernel.columns()).unwrap_or(u32::MAX)
    }

    pub(super) fn weights(&self) -> impl Iterator<Item = &Weight> {
        let kernel = std::iter::once(&self.kernel).chain(&self.bias);
        self.input.weights().chain(kernel).chain(self.output.weights())
    }
}
