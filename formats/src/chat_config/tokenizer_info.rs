//! What WebLLM must know about a tokenizer, read from `tokenizer.json`.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ChatConfigError;

/// `tokenizer_info` of `mlc-chat-config.json`.
///
/// The rules are those of MLC-LLM's `cpp/tokenizers/tokenizers.cc`, `DetectTokenizerInfo`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenizerInfo {
    /// How the text of a token becomes bytes.
    pub token_postproc_method: Postproc,
    /// A space is put before the text when it is encoded.
    pub prepend_space_in_encode: bool,
    /// One space is taken from the front of the decoded text.
    pub strip_space_in_decode: bool,
}

/// How the text of a token becomes bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Postproc {
    /// `<0xNN>` is a byte, `▁` a space, everything else is itself.
    ByteFallback,
    /// Every character stands for a byte, by GPT-2's table.
    ByteLevel,
}

impl TokenizerInfo {
    /// Reads the decoder and the normalizer of a `tokenizer.json`.
    ///
    /// # Errors
    /// [`ChatConfigError::DuplicateAddedToken`], which MLC refuses too: which of the two ids a token gets is then up to
    /// the library that reads the file.
    pub fn detect(tokenizer: &Value) -> Result<Self, ChatConfigError> {
        let mut seen = HashSet::new();
        if let Some(token) = added_tokens(tokenizer).find(|token| !seen.insert(*token)) {
            return Err(ChatConfigError::DuplicateAddedToken { token: token.to_owned() });
        }

        let mut info = Self {
            token_postproc_method: Postproc::ByteFallback,
            prepend_space_in_encode: false,
            strip_space_in_decode: false,
        };
        for decoder in members(&tokenizer["decoder"], "decoders") {
            match decoder["type"].as_str() {
                // Of several, the last one wins.
                Some("ByteLevel") => info.token_postproc_method = Postproc::ByteLevel,
                Some("ByteFallback") => info.token_postproc_method = Postproc::ByteFallback,
                Some("Strip") => {
                    info.strip_space_in_decode |=
                        decoder["content"] == " " && decoder["start"] == 1 && decoder["stop"] == 0;
                }
                _ => {}
            }
        }
        info.prepend_space_in_encode = members(&tokenizer["normalizer"], "normalizers")
            .iter()
            .any(|step| step["type"] == "Prepend" && step["prepend"] == "\u{2581}");
        Ok(info)
    }
}

/// Tokens that a text can encode to: the model's vocabulary and the added tokens outside it, which is what
/// `len(transformers.AutoTokenizer)` counts. `None` if the file has no vocabulary.
pub fn active_vocab_size(tokenizer: &Value) -> Option<u64> {
    let vocab = &tokenizer["model"]["vocab"];
    let (mut known, in_model): (HashSet<&str>, usize) = match vocab {
        Value::Object(map) => (map.keys().map(String::as_str).collect(), map.len()),
        // Unigram: a list of [piece, score].
        Value::Array(rows) => (rows.iter().filter_map(|row| row[0].as_str()).collect(), rows.len()),
        _ => return None,
    };
    let added = added_tokens(tokenizer).filter(|token| known.insert(token)).count();
    Some((in_model + added) as u64)
}

/// The id of the token that is written `text`: an added token, or one of the model's vocabulary.
pub fn token_id(tokenizer: &Value, text: &str) -> Option<u32> {
    let rows = tokenizer["added_tokens"].as_array().map_or(&[][..], Vec::as_slice);
    let added = rows.iter().find(|row| row["content"] == text).map(|row| &row["id"]);
    let id = added.unwrap_or(&tokenizer["model"]["vocab"][text]);
    id.as_u64().and_then(|id| u32::try_from(id).ok())
}

fn added_tokens(tokenizer: &Value) -> impl Iterator<Item = &str> {
    let rows = tokenizer["added_tokens"].as_array().map_or(&[][..], Vec::as_slice);
    rows.iter().filter_map(|row| row["content"].as_str())
}

/// The steps of a `Sequence`, or the one step that stands alone.
fn members<'a>(step: &'a Value, list: &str) -> &'a [Value] {
    match step[list].as_array() {
        Some(steps) if step["type"] == "Sequence" => steps,
        _ => std::slice::from_ref(step),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn info(postproc: Postproc, prepend: bool, strip: bool) -> TokenizerInfo {
        TokenizerInfo {
            token_postproc_method: postproc,
            prepend_space_in_encode: prepend,
            strip_space_in_decode: strip,
        }
    }

    #[test]
    fn decoders_and_normalizers_stand_alone_or_in_sequences() {
        let byte_level = json!({"decoder": {"type": "ByteLevel"}, "normalizer": null});
        assert_eq!(
            TokenizerInfo::detect(&byte_level).unwrap(),
            info(Postproc::ByteLevel, false, false)
        );
        let llama2 = json!({
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "content": "▁"}]},
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace"}, {"type": "ByteFallback"}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        });
        assert_eq!(
            TokenizerInfo::detect(&llama2).unwrap(),
            info(Postproc::ByteFallback, true, true)
        );
        assert_eq!(
            TokenizerInfo::detect(&json!({})).unwrap(),
            info(Postproc::ByteFallback, false, false)
        );
    }

    #[test]
    fn a_token_added_twice_is_refused() {
        let tokenizer = json!({"added_tokens": [{"content": "<a>"}, {"content": "<a>"}]});
        let error = TokenizerInfo::detect(&tokenizer).unwrap_err();
        assert!(error.to_string().contains("`<a>`"), "{error}");
    }

    #[test]
    fn added_tokens_count_once() {
        let tokenizer = json!({
            "added_tokens": [{"content": "a"}, {"content": "<s>"}],
            "model": {"vocab": {"a": 0, "b": 1}},
        });
        assert_eq!(active_vocab_size(&tokenizer), Some(3));
        let unigram = json!({"model": {"vocab": [["a", -1.0], ["b", -2.0]]}});
        assert_eq!(active_vocab_size(&unigram), Some(2));
        assert_eq!(active_vocab_size(&json!({})), None);
    }
}
