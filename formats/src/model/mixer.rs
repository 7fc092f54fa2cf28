//! Token mixing: how a layer looks at other tokens than the current one.

use serde::{Deserialize, Serialize};

use super::{Attention, ShortConv, Weight};

/// How a layer mixes tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Mixer {
    /// By what they have to say to each other.
    Attention(Box<Attention>),
    /// By how far they are apart.
    ShortConv(Box<ShortConv>),
}

impl Mixer {
    /// The attention, where it is one.
    pub fn attention(&self) -> Option<&Attention> {
        match self {
            Self::Attention(attention) => Some(attention),
            Self::ShortConv(_) => None,
        }
    }

    /// The same, to be changed.
    pub fn attention_mut(&mut self) -> Option<&mut Attention> {
        match self {
            Self::Attention(attention) => Some(attention),
            Self::ShortConv(_) => None,
        }
    }

    pub(super) fn weights(&self) -> Vec<&Weight> {
        match self {
            Self::Attention(attention) => attention.weights().collect(),
            Self::ShortConv(conv) => conv.weights().collect(),
        }
    }
}
