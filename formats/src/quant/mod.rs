//! Quantisation schemes as rows of data, after MLC-LLM's registry (`quantization/quantization.py`).
//!
//! A scheme says what is quantised, into how many bits and how the result is laid out. Which codes a group gets is
//! another question, answered by a chooser ([`codes`]); every chooser works with every grouped scheme.

pub mod codes;
pub mod float;
pub mod group;

use crate::dtype::Dtype;
use crate::model::{Role, Weight};
use crate::record::RecordSpec;
pub use codes::Codes;
pub use group::Grouped;

/// One row of the table of schemes.
#[derive(Debug, PartialEq, Eq)]
pub struct Scheme {
    /// MLC's name, as in `mlc-chat-config.json`.
    pub name: &'static str,
    /// Type of scales and of everything that is not quantised.
    pub dtype: Dtype,
    /// Layout of the quantised weights.
    pub grouped: Grouped,
}

/// Every scheme, by name.
pub const SCHEMES: &[Scheme] =
    &[Scheme { name: "q4f16_1", dtype: Dtype::Float16, grouped: Grouped { bits: 4, group: 32 } }];

/// The records that hold one weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storage {
    /// Codes and scales.
    Grouped {
        /// How they are laid out.
        layout: Grouped,
        /// `[rows, words of a row]` of packed codes.
        q_weight: RecordSpec,
        /// `[rows, groups of a row]`.
        q_scale: RecordSpec,
    },
    /// The values in the scheme's dtype.
    Plain(RecordSpec),
}

impl Scheme {
    /// The row of that name.
    pub fn find(name: &str) -> Option<&'static Self> {
        SCHEMES.iter().find(|scheme| scheme.name == name)
    }

    /// How a weight is stored under this scheme. A quantised `X.weight` becomes `X.q_weight` and `X.q_scale`.
    pub fn storage(&self, weight: &Weight) -> Storage {
        match weight.role {
            Role::Linear | Role::Embedding | Role::Head => {
                let layout = self.grouped;
                let stem = weight.name.strip_suffix("weight").unwrap_or(&weight.name);
                let (rows, columns) = (weight.rows(), weight.columns());
                Storage::Grouped {
                    layout,
                    q_weight: RecordSpec::new(
                        format!("{stem}q_weight"),
                        Dtype::Uint32,
                        [rows, layout.words_per_row(columns)],
                    ),
                    q_scale: RecordSpec::new(
                        format!("{stem}q_scale"),
                        self.dtype,
                        [rows, layout.groups_per_row(columns)],
                    ),
                }
            }
            Role::Vector => Storage::Plain(RecordSpec::new(
                weight.name.clone(),
                self.dtype,
                weight.shape.clone(),
            )),
        }
    }
}

impl Storage {
    /// Its records in the order in which they are written.
    pub fn records(&self) -> impl Iterator<Item = &RecordSpec> {
        let (first, second) = match self {
            Self::Grouped { q_weight, q_scale, .. } => (q_weight, Some(q_scale)),
            Self::Plain(record) => (record, None),
        };
        std::iter::once(first).chain(second)
    }
}
