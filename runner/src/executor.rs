//! What the CPU reference and the GPU have in common: a plan, its weights, and a call that advances the KV cache.

use packlight_formats::RecordSpec;

use crate::plan::Plan;

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

/// What a call is given: its tokens, and what they look up in tables that no device holds.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    pub tokens: &'a [u32],
    /// `[T, columns]` of each of [`Plan::host_tables`], in order.
    pub rows: &'a [Vec<f32>],
}

/// The inputs of a plan without such tables.
impl<'a, T: AsRef<[u32]> + ?Sized> From<&'a T> for Inputs<'a> {
    fn from(tokens: &'a T) -> Self {
        Self { tokens: tokens.as_ref(), rows: &[] }
    }
}

impl Inputs<'_> {
    /// Whether the rows are those that so many columns of each table need.
    pub(crate) fn check(
        &self,
        columns: impl ExactSizeIterator<Item = u32>,
    ) -> Result<(), CallError> {
        let (tables, found) = (columns.len(), self.rows.len());
        let mut each = self.rows.iter().zip(columns);
        let whole = each.all(|(rows, columns)| rows.len() == self.tokens.len() * columns as usize);
        if tables == found && whole { Ok(()) } else { Err(CallError::Rows { tables, found }) }
    }
}

/// Stands for the likeliest token where there is none: a logit is no number or +inf, or all are -inf.
pub(crate) const NO_TOKEN: u32 = u32::MAX;

/// What a call should return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Only the KV cache is wanted (all but the last chunk of a prefill).
    Nothing,
    /// The most likely next token, or `NO_TOKEN`.
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
    /// The most tokens of one call that get logits.
    pub outputs: u32,
}

/// Takes the bytes of a bundle's records as they are read.
pub trait WeightSink {
    /// Why bytes could not be taken.
    type Error;

    /// A piece of a record, stored as `record` says. What is looked up on the host ([`Plan::host_tables`]) need not be kept. Pieces of one record come in order without gaps; `offset` is a
    /// multiple of four, and so is the length of all but a record's last piece. A piece has at most 8 MiB.
    fn write(&mut self, record: &RecordSpec, offset: u64, bytes: &[u8]) -> Result<(), Self::Error>;

    /// Between pieces: whoever still holds much of what came waits here until it holds less. A write cannot wait where
    /// only an event loop can, in a browser.
    fn settle(&mut self) -> impl Future<Output = Result<(), Self::Error>> {
        async { Ok(()) }
    }
}

/// Why a call cannot be made at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    #[error("a call needs at least one token")]
    NoTokens,
    #[error("{tokens} tokens in one call, but buffers were made for {chunk}")]
    ChunkTooLong { tokens: usize, chunk: u32 },
    #[error("position {end} lies beyond the context of {context} that the KV cache was made for")]
    ContextFull { end: u64, context: u32 },
    #[error("position {past} cannot be gone back to: only the last {reach} of {furthest} can")]
    Forgotten { past: u32, reach: u32, furthest: u32 },
    #[error(
        "{tables} tables are looked up on the host, but rows of {found} (or too few) were given"
    )]
    Rows { tables: usize, found: usize },
    #[error("token {token} is outside the vocabulary of {vocab}")]
    UnknownToken { token: u32, vocab: u32 },
}

impl Capacity {
    /// The live values of a call, if it fits.
    pub fn live(
        &self,
        tokens: &[u32],
        past: u32,
        want: Want,
        vocab: u32,
    ) -> Result<Live, CallError> {
        let count = match u32::try_from(tokens.len()) {
            Ok(0) => return Err(CallError::NoTokens),
            Ok(count) if count <= self.chunk => count,
            _ => return Err(CallError::ChunkTooLong { tokens: tokens.len(), chunk: self.chunk }),
        };
        let end = u64::from(past) + u64::from(count);
        if end > u64::from(self.context) {
            return Err(CallError::ContextFull { end, context: self.context });
        }
        if let Some(&token) = tokens.iter().find(|&&token| token >= vocab) {
            return Err(CallError::UnknownToken { token, vocab });
        }
        let outputs = match want {
            Want::Nothing | Want::Argmax | Want::LastLogits => 1,
            Want::AllLogits if count <= self.outputs => count,
            Want::AllLogits => {
                return Err(CallError::ChunkTooLong { tokens: tokens.len(), chunk: self.outputs });
            }
        };
        Ok(Live { tokens: count, past, outputs })
    }
}

/// What the caches of a session still hold.
#[derive(Debug)]
pub(crate) struct Memory {
    /// See [`Plan::reach`].
    reach: Option<u32>,
    /// One past the last position that was ever written since the first.
    furthest: u32,
}

impl Memory {
    pub(crate) fn of(plan: &Plan, capacity: Capacity) -> Self {
        Self { reach: plan.reach(capacity), furthest: 0 }
    }

    /// See [`Plan::reach`].
    pub(crate) fn reach(&self) -> Option<u32> {
        self.reach
    }

    /// Whether everything is still there that is looked at from `past` on.
    pub(crate) fn check(&self, past: u32) -> Result<(), CallError> {
        match (self.reach, self.furthest) {
            // What comes first looks at nothing before it.
            (Some(reach), furthest) if past > 0 && past.saturating_add(reach) < furthest => {
                Err(CallError::Forgotten { past, reach, furthest })
            }
            _ => Ok(()),
        }
    }

    /// Goes on from `live.past`, if that can be done.
    pub(crate) fn read_on(&mut self, live: Live) -> Result<(), CallError> {
        self.check(live.past)?;
        let furthest = if live.past == 0 { 0 } else { self.furthest };
        self.furthest = furthest.max(live.past + live.tokens);
        Ok(())
    }
}
