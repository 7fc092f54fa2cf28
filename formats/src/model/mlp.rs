//! Channel mixing: one gated MLP for all tokens, or a few of many for each.

use serde::{Deserialize, Serialize};

use super::{Linear, Weight};

/// What a layer does with each token by itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Mlp {
    /// The same for all tokens.
    Gated(Box<Gated>),
    /// Those that a router chooses.
    Experts(Box<Experts>),
}

/// Gated MLP: `down(act(gate(x)) * up(x))`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Gated {
    /// Applied to the gate.
    pub activation: Activation,
    /// `[2 * intermediate, hidden]`: gate rows, then up rows.
    pub gate_up: Linear,
    /// `[hidden, intermediate]`.
    pub down: Linear,
}

/// Routed experts (Shazeer et al. 2017): a token goes through the `per_token` gated MLPs that the router gives the
/// largest probabilities, and their outputs are added up, each times its probability.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Experts {
    /// How many of them a token goes through.
    pub per_token: u32,
    /// Whether the probabilities of those chosen are scaled to add up to 1.
    pub normalised: bool,
    /// Applied to the gate.
    pub activation: Activation,
    /// `[experts, hidden]`: a softmax over what it gives makes the probabilities.
    pub router: Linear,
    /// `[experts, 2 * intermediate, hidden]`: of each expert gate rows, then up rows.
    pub gate_up: Linear,
    /// `[experts, hidden, intermediate]`.
    pub down: Linear,
}

/// Elementwise function of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU with the tanh approximation: `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`.
    GeluTanh,
}

impl Mlp {
    pub(super) fn weights(&self) -> impl Iterator<Item = &Weight> {
        let linears = match self {
            Self::Gated(gated) => vec![&gated.gate_up, &gated.down],
            Self::Experts(experts) => vec![&experts.router, &experts.gate_up, &experts.down],
        };
        linears.into_iter().flat_map(Linear::weights)
    }
}
