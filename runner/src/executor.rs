//! What the CPU reference and the GPU have in common: a plan, its weights, and a call that advances the KV cache.

use packlight_formats::RecordSpec;

/// The live part of a call: which rows of the buffers are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Live {
    /// Tokens of this call.
    pub tokens: u32,
    /// Positions already in the KV cache.
    pub past: u32,
    /// How many of the last tokens get logits.
    pub outputs: u32,
}

/// What a call should return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Only the KV cache is wanted (all but the last chunk of a prefill).
    Nothing,
    /// The most likely next token.
    Argmax,
    /// Logits of the last token, `[vocab]`.
    LastLogits,
    /// Logits of every token of the call, `[tokens, vocab]`.
    AllLogits,
}

/// The answer to a [`Want`].
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    Nothing,
    Token(u32),
    Logits(Vec<f32>),
}

/// The sizes that buffers are allocated for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Positions of the KV cache.
    pub context: u32,
    /// The most tokens of one call.
    pub chunk: u32,
}

/// Takes the bytes of a bundle's records as they are read.
pub trait WeightSink {
    /// Why bytes could not be taken.
    type Error;

    /// A piece of a record, stored as `record` says. Pieces of one record come in order without gaps; `offset` is a
    /// multiple of four, and so is the length of all but a record's last piece. A piece has at most 8 MiB.
    fn write(&mut self, record: &RecordSpec, offset: u64, bytes: &[u8]) -> Result<(), Self::Error>;
}
