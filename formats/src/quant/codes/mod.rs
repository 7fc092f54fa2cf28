//! Code choosers: given the values of one group, which scale and which codes.

mod best;
pub mod gptq;
mod mlc;

use super::group::Grouped;
use crate::dtype::Dtype;

/// What a chooser must know besides the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Bits and length of a group.
    pub layout: Grouped,
    /// Type of the values and of the scale in memory.
    pub dtype: Dtype,
    /// How MLC's rule rounds.
    pub rounding: Rounding,
}

/// Where a position halfway between two codes goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Rounding {
    /// To the even code, as TVM has done since 0.24.
    #[default]
    Even,
    /// To the higher code, `floor(t + 0.5)`, as older TVM did.
    Away,
}

/// Chooses a scale (a value of the grid's dtype) and writes one code per value of the group.
///
/// The values are at most `group` many (fewer at the end of a row) and rounded to the dtype.
pub type Choose = fn(&Grid, &[f32], &mut [u8]) -> f32;

/// One row of the table of choosers.
#[derive(Debug)]
pub struct Codes {
    /// As in `--codes NAME`.
    pub name: &'static str,
    /// Whether its result depends on [`Grid::rounding`].
    pub rounds: bool,
    /// Whether it looks at the inputs of a matrix ([`gptq`]); `choose` is for weights whose inputs are not known.
    pub calibrates: bool,
    /// The rule.
    pub choose: Choose,
}

/// Every chooser. The first is the default.
pub const CODES: &[Codes] = &[
    Codes { name: "best", rounds: false, calibrates: false, choose: best::choose },
    Codes { name: "mlc", rounds: true, calibrates: false, choose: mlc::choose },
    Codes { name: "gptq", rounds: false, calibrates: true, choose: best::choose },
];

impl Codes {
    /// What is used where nothing else is asked for.
    pub const DEFAULT: &'static Self = &CODES[0];

    /// The row of that name.
    pub fn find(name: &str) -> Option<&'static Self> {
        CODES.iter().find(|codes| codes.name == name)
    }
}
