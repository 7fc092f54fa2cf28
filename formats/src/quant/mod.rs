//! Quantisation schemes as rows of data, after MLC-LLM's registry (`quantization/quantization.py`).
//!
//! A scheme says what is quantised, into how many bits and how the result is laid out. Which codes a group gets is
//! another question, answered by a chooser ([`codes`]); every chooser works with every grouped scheme.

#![expect(
    clippy::inline_always,
    reason = "only what is inlined into a function made for certain vector instructions uses them"
)]

mod assignment;
pub mod codes;
pub mod float;
pub mod group;

use crate::dtype::Dtype;
use crate::model::{Role, Weight};
use crate::record::RecordSpec;
pub use assignment::Assignment;
pub use codes::{Codes, Grid, Rounding};
pub use group::{Coding, Grouped};

/// One row of the table of schemes.
#[derive(Debug, PartialEq, Eq)]
pub struct Scheme {
    /// MLC's name, as in `mlc-chat-config.json`.
    pub name: &'static str,
    /// Type of scales and of everything that is not quantised.
    pub dtype: Dtype,
    /// How weights are grouped; `None` where nothing is quantised.
    pub grouped: Option<Grouped>,
    /// How the codes and scales of projections and of the head lie in their records.
    pub order: Order,
    /// Whether the token table is quantised.
    pub embedding: bool,
    /// Whether an output head of its own is quantised.
    pub head: bool,
}

/// The order of a quantised matrix of N output and K input features. Groups run along K in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Row-major `[N, words of a row]`.
    Nk,
    /// Transposed after packing: `[words of a row, N]`.
    Kn,
}

use Dtype::{Bfloat16, Float16, Float32};
use Order::{Kn, Nk};

const Q3: Option<Grouped> = Some(Grouped::mlc(3, 40));
const Q4: Option<Grouped> = Some(Grouped::mlc(4, 32));
/// Not MLC's: for weights that an override keeps closer to the original.
const Q8: Option<Grouped> = Some(Grouped::mlc(8, 32));

/// Every scheme. The first is the default: what WebLLM recommends where `shader-f16` is available.
#[rustfmt::skip]
pub const SCHEMES: &[Scheme] = &[
    Scheme { name: "q4f16_1",  dtype: Float16,  grouped: Q4,   order: Nk, embedding: true,  head: true },
    Scheme { name: "q4f16_0",  dtype: Float16,  grouped: Q4,   order: Kn, embedding: true,  head: true },
    Scheme { name: "q4f16_2",  dtype: Float16,  grouped: Q4,   order: Nk, embedding: false, head: false },
    Scheme { name: "q4f32_1",  dtype: Float32,  grouped: Q4,   order: Nk, embedding: true,  head: true },
    Scheme { name: "q4bf16_0", dtype: Bfloat16, grouped: Q4,   order: Kn, embedding: true,  head: true },
    Scheme { name: "q4bf16_1", dtype: Bfloat16, grouped: Q4,   order: Nk, embedding: true,  head: true },
    Scheme { name: "q3f16_0",  dtype: Float16,  grouped: Q3,   order: Kn, embedding: true,  head: true },
    Scheme { name: "q3f16_1",  dtype: Float16,  grouped: Q3,   order: Nk, embedding: true,  head: true },
    Scheme { name: "q8f16_1",  dtype: Float16,  grouped: Q8,   order: Nk, embedding: true,  head: true },
    Scheme { name: "q0f16",    dtype: Float16,  grouped: None, order: Nk, embedding: false, head: false },
    Scheme { name: "q0bf16",   dtype: Bfloat16, grouped: None, order: Nk, embedding: false, head: false },
    Scheme { name: "q0f32",    dtype: Float32,  grouped: None, order: Nk, embedding: false, head: false },
];

/// The records that hold one weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storage {
    /// Codes and scales.
    Grouped {
        /// How a row is coded.
        layout: Grouped,
        /// How the rows lie in the records.
        order: Order,
        /// Packed codes, `[rows, words of a row]` or the transpose.
        q_weight: RecordSpec,
        /// Scales, `[rows, groups of a row]` or the transpose.
        q_scale: RecordSpec,
    },
    /// The values in the scheme's dtype.
    Plain(RecordSpec),
}

impl Scheme {
    /// What is used where nothing else is asked for.
    pub const DEFAULT: &'static Self = &SCHEMES[0];

    /// The row of that name.
    pub fn find(name: &str) -> Option<&'static Self> {
        SCHEMES.iter().find(|scheme| scheme.name == name)
    }

    /// How a weight is stored under this scheme. A quantised `X.weight` becomes `X.q_weight` and `X.q_scale`.
    pub fn storage(&self, weight: &Weight) -> Storage {
        let (quantised, order) = match weight.role {
            Role::Linear => (true, self.order),
            // MLC has no transposed experts either.
            Role::Experts => (true, Nk),
            Role::Head => (self.head, self.order),
            // Rows of the token table are looked up one by one, so it is never transposed.
            Role::Embedding => (self.embedding, Nk),
            Role::Gate | Role::Vector => (false, Nk),
        };
        let Some(layout) = self.grouped.filter(|_| quantised) else {
            let shape = weight.shape.clone();
            return Storage::Plain(RecordSpec::new(weight.name.clone(), self.dtype, shape));
        };
        let stem = weight.name.strip_suffix("weight").unwrap_or(&weight.name);
        let record = |suffix, dtype, width| {
            let mut shape = weight.shape.clone();
            match order {
                Nk => shape[weight.shape.len() - 1] = width,
                Kn => shape = vec![width, weight.rows()],
            }
            RecordSpec::new(format!("{stem}{suffix}"), dtype, shape)
        };
        let columns = weight.columns();
        Storage::Grouped {
            layout,
            order,
            q_weight: record("q_weight", Dtype::Uint32, layout.words_per_row(columns)),
            q_scale: record("q_scale", self.dtype, layout.groups_per_row(columns)),
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

    fn records_mut(&mut self) -> impl Iterator<Item = &mut RecordSpec> {
        let (first, second) = match self {
            Self::Grouped { q_weight, q_scale, .. } => (q_weight, Some(q_scale)),
            Self::Plain(record) => (record, None),
        };
        std::iter::once(first).chain(second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_what_webllm_recommends() {
        assert_eq!(Scheme::DEFAULT.name, "q4f16_1");
    }

    #[test]
    fn only_projections_and_heads_are_transposed() {
        let shapes = |scheme: &str, role| -> Vec<Vec<u64>> {
            let weight = Weight::copy("x.weight", "x.weight", &[48, 100], role);
            let storage = Scheme::find(scheme).expect("a scheme").storage(&weight);
            storage.records().map(|record| record.shape.clone()).collect()
        };
        assert_eq!(shapes("q4f16_0", Role::Linear), [[16, 48], [4, 48]]);
        assert_eq!(shapes("q4f16_0", Role::Head), [[16, 48], [4, 48]]);
        assert_eq!(shapes("q4f16_0", Role::Embedding), [[48, 16], [48, 4]]);
        assert_eq!(shapes("q3f16_1", Role::Linear), [[48, 12], [48, 3]]);
        assert_eq!(shapes("q4f16_2", Role::Linear), [[48, 16], [48, 4]]);
        assert_eq!(shapes("q4f16_2", Role::Head), [[48, 100]]);
        assert_eq!(shapes("q4f16_2", Role::Embedding), [[48, 100]]);
        assert_eq!(shapes("q0f32", Role::Linear), [[48, 100]]);
    }
}
