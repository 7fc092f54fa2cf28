//! Code choosers: given the values of one group, which scale and which codes.

pub(super) mod best;
pub mod gptq;
pub(super) mod mlc;

use super::group::Grouped;
use crate::dtype::Dtype;
use best::Best;
use mlc::Mlc;

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

/// Quantises rows, as [`Grid::encode_rows`] says.
pub type EncodeRows = fn(&Grid, &[f32], usize, &mut [u32], &mut [f32]);

/// One row of the table of choosers.
#[derive(Debug)]
pub struct Codes {
    /// As in `--codes NAME`.
    pub name: &'static str,
    /// Whether its result depends on [`Grid::rounding`].
    pub rounds: bool,
    /// Whether it looks at the inputs of a matrix ([`gptq`]); `encode` is for weights whose inputs are not known.
    pub calibrates: bool,
    /// The rule.
    pub encode: EncodeRows,
}

/// Every chooser. The first is the default.
pub const CODES: &[Codes] = &[
    Codes { name: "best", rounds: false, calibrates: false, encode: Grid::encode_groups::<Best> },
    Codes { name: "mlc", rounds: true, calibrates: false, encode: Grid::encode_groups::<Mlc> },
    Codes { name: "gptq", rounds: false, calibrates: true, encode: Grid::encode_groups::<Best> },
];

impl Codes {
    /// What is used where nothing else is asked for.
    pub const DEFAULT: &'static Self = &CODES[0];

    /// The row of that name.
    pub fn find(name: &str) -> Option<&'static Self> {
        CODES.iter().find(|codes| codes.name == name)
    }
}
