//! `tokenizer.json`, a part at a time. The tokenizers crate reads one as a tree first, which for Gemma's 262,144 tokens and
//! 514,906 merges takes 290 MiB of a browser's memory; this takes half of that.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};
use serde_json::value::RawValue;
use tokenizers::models::ModelWrapper;
use tokenizers::models::bpe::{BPE, BpeBuilder, Vocab};
use tokenizers::{
    AddedToken, DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper,
    Tokenizer,
};

use super::tokenizer::Source;

/// A `tokenizer.json` without its settings for truncation and padding: they are often those of some training run, and
/// would cut a prompt without a word.
#[derive(Deserialize)]
struct File<'a> {
    #[serde(borrow)]
    model: &'a RawValue,
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    post_processor: Option<PostProcessorWrapper>,
    decoder: Option<DecoderWrapper>,
}

/// What tells models apart; old files do not say it.
#[derive(Deserialize)]
struct Kind<'a> {
    #[serde(rename = "type")]
    name: Option<&'a str>,
}

/// A model as it is read.
enum Parts {
    Pairs(Pairs),
    Other(ModelWrapper),
}

/// The fields of a byte-pair encoding.
#[derive(Deserialize)]
struct Pairs {
    vocab: Vocab,
    merges: Vec<Merge>,
    dropout: Option<f32>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
}

/// Two tokens that become one: `["a", "b"]`, or `"a b"` in old files.
struct Merge(String, String);

/// Reads a `tokenizer.json`.
pub(super) fn read(json: Vec<u8>) -> Result<Tokenizer, Source> {
    let file: File<'_> = serde_json::from_slice(&json)?;
    let kind: Kind<'_> = serde_json::from_str(file.model.get())?;
    let parts = match kind.name {
        Some("BPE") => Parts::Pairs(serde_json::from_str(file.model.get())?),
        // Others are smaller.
        _ => Parts::Other(serde_json::from_str(file.model.get())?),
    };
    let File { added_tokens, normalizer, pre_tokenizer, post_processor, decoder, .. } = file;
    // The model takes as much again while it is made.
    drop(json);
    let mut tokenizer = Tokenizer::new(match parts {
        Parts::Pairs(pairs) => pairs.model()?.into(),
        Parts::Other(model) => model,
    });
    tokenizer
        .with_normalizer(normalizer)?
        .with_pre_tokenizer(pre_tokenizer)
        .with_post_processor(post_processor)
        .with_decoder(decoder);
    // Last, since their ids are those of the model where it has them.
    tokenizer.add_tokens(added_tokens)?;
    Ok(tokenizer)
}

impl Pairs {
    fn model(self) -> Result<BPE, Source> {
        let merges = self.merges.into_iter().map(|Merge(left, right)| (left, right)).collect();
        let mut builder = BpeBuilder::new()
            .vocab_and_merges(self.vocab, merges)
            .fuse_unk(self.fuse_unk)
            .byte_fallback(self.byte_fallback)
            .ignore_merges(self.ignore_merges);
        if let Some(dropout) = self.dropout {
            builder = builder.dropout(dropout);
        }
        if let Some(token) = self.unk_token {
            builder = builder.unk_token(token);
        }
        if let Some(prefix) = self.continuing_subword_prefix {
            builder = builder.continuing_subword_prefix(prefix);
        }
        if let Some(suffix) = self.end_of_word_suffix {
            builder = builder.end_of_word_suffix(suffix);
        }
        builder.build()
    }
}

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(MergeVisitor)
    }
}

struct MergeVisitor;

impl<'de> Visitor<'de> for MergeVisitor {
    type Value = Merge;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("two tokens, in a list or with a space between them")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Merge, E> {
        match text.split_once(' ') {
            Some((left, right)) if !right.contains(' ') => Ok(Merge(left.into(), right.into())),
            _ => Err(E::custom(format!("`{text}` is no two tokens"))),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Merge, A::Error> {
        let mut next =
            || list.next_element()?.ok_or_else(|| A::Error::custom("a token is missing"));
        Ok(Merge(next()?, next()?))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn file(merges: &Value) -> Value {
        let added = |id: u32, content: &str| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": true})
        };
        json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": [added(0, "<s>"), added(6, "<new>")],
            "normalizer": {"type": "Lowercase"}, "pre_tokenizer": null, "post_processor": null,
            "decoder": {"type": "Fuse"},
            "model": {
                "type": "BPE", "dropout": null, "unk_token": "<s>", "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": false, "ignore_merges": false,
                "vocab": {"<s>": 0, "a": 1, "b": 2, "c": 3, "ab": 4, "abc": 5}, "merges": merges,
            },
        })
    }

    #[test]
    fn it_is_what_the_crate_reads_itself() {
        for merges in [json!([["a", "b"], ["ab", "c"]]), json!(["a b", "ab c"])] {
            let json = file(&merges).to_string();
            let (ours, theirs) =
                (read(json.clone().into()).unwrap(), json.parse::<Tokenizer>().unwrap());
            assert_eq!(ours.to_string(false).unwrap(), theirs.to_string(false).unwrap());
            let ids = ours.encode_fast("<s>ABC<new>xyab", false).unwrap().get_ids().to_vec();
            assert_eq!(ids, [0, 5, 6, 0, 4]);
        }
    }

    #[test]
    fn models_of_other_kinds_are_read() {
        let mut json = file(&json!([]));
        json["model"] =
            json!({"type": "WordLevel", "vocab": {"a": 0, "<s>": 1}, "unk_token": "<s>"});
        let tokenizer = read(json.to_string().into()).unwrap();
        assert_eq!(tokenizer.encode_fast("A", false).unwrap().get_ids(), [0]);
    }

    #[test]
    fn broken_merges_are_an_error() {
        for merges in [
            json!(["a"]),
            json!(["a b c"]),
            json!([["a"]]),
            json!([["a", "b", "c"]]),
            json!([1]),
            json!([["a", "c"]]),
        ] {
            assert!(read(file(&merges).to_string().into()).is_err(), "{merges}");
        }
    }
}
