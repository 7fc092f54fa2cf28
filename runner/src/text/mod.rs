//! Text in and text out: tokenizer, chat template, sampling and the rules that end an answer.

pub mod bundle;
pub mod chat;
pub mod date;
pub mod detokenize;
pub mod sample;
pub mod stop;
pub mod template;
pub mod tokenizer;
mod tokenizer_file;

pub use bundle::{Text, TextError};
pub use chat::{ChatError, ChatFormat};
pub use date::Date;
pub use detokenize::Detokenizer;
pub use sample::{Sampler, Sampling, SamplingError};
pub use stop::{StopFilter, StopRules};
pub use template::{ChatTemplate, TemplateError};
pub use tokenizer::{SpecialTokens, Tokenizer, TokenizerError};
