//! Text to token ids, by the tokenizers crate from a `tokenizer.json`.

use serde_json::Value;

use super::tokenizer_file;

/// Why text and tokens could not be turned into each other.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    #[error("tokenizer.json cannot be read: {0}")]
    File(Source),
    #[error("the text cannot be encoded: {0}")]
    Encode(Source),
    #[error("the tokens {ids:?} cannot be decoded: {source}")]
    Decode { ids: Vec<u32>, source: Source },
}

/// The tokenizers crate has no error type of its own.
pub(super) type Source = Box<dyn std::error::Error + Send + Sync>;

/// A tokenizer that never truncates or pads.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
}

/// What `tokenizer_config.json` says about tokens that are no text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    pub bos: Option<String>,
    pub eos: Option<String>,
    pub pad: Option<String>,
    pub unk: Option<String>,
    /// Plain text begins with [`Self::bos`], whatever the post-processor of `tokenizer.json` does.
    pub add_bos: bool,
}

impl SpecialTokens {
    /// Reads `tokenizer_config.json`; a token is a text or an object with its text under `content`.
    pub fn from_config(config: &Value) -> Self {
        let token = |key: &str| {
            let token = &config[key];
            token.as_str().or_else(|| token["content"].as_str()).map(str::to_owned)
        };
        Self {
            bos: token("bos_token"),
            eos: token("eos_token"),
            pad: token("pad_token"),
            unk: token("unk_token"),
            add_bos: config["add_bos_token"] == true,
        }
    }
}

impl Tokenizer {
    /// From the bytes of a `tokenizer.json`.
    pub fn from_bytes(json: Vec<u8>) -> Result<Self, TokenizerError> {
        Ok(Self { inner: tokenizer_file::read(json).map_err(TokenizerError::File)? })
    }

    /// Ids of a text that already holds its special tokens, such as a rendered chat.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.encode_with(text, false)
    }

    /// Ids of plain text, with the tokens that the model expects around it.
    ///
    /// `add_bos_token` counts even where the post-processor adds nothing, as it did in transformers' own tokenizers.
    pub fn encode_plain(
        &self,
        text: &str,
        special: &SpecialTokens,
    ) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = self.encode_with(text, true)?;
        let bos = special.bos.as_deref().and_then(|bos| self.id(bos)).filter(|_| special.add_bos);
        if let Some(bos) = bos
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        Ok(ids)
    }

    /// The special tokens that the model expects before plain text.
    pub fn beginning(&self, special: &SpecialTokens) -> Result<Vec<u32>, TokenizerError> {
        // Some text, since a tokenizer may have tokens for its end too.
        let (bare, plain) = (self.encode("a")?, self.encode_plain("a", special)?);
        let start = plain.windows(bare.len().max(1)).position(|window| window == bare);
        Ok(plain[..start.unwrap_or(0)].to_vec())
    }

    fn encode_with(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self.inner.encode_fast(text, add_special).map_err(TokenizerError::Encode)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of `ids` as a whole, without special tokens.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        let decoded = self.inner.decode(ids, true);
        decoded.map_err(|source| TokenizerError::Decode { ids: ids.to_vec(), source })
    }

    /// Tokens that a text can encode to; a model's logits may have more.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// The id of a token, given as the vocabulary writes it.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// A token as the vocabulary writes it: not text, "Ġthe" rather than " the".
    pub fn piece(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    /// A byte-level BPE with every byte as a token, ids 0..=255 in GPT-2's order, and `<s>`, `</s>` as 256 and 257.
    pub(crate) fn byte_level() -> Tokenizer {
        // GPT-2's table: printable bytes are themselves, the others follow from U+0100 on.
        let mut shifted = 0x100;
        let mut vocab = serde_json::Map::new();
        for byte in 0..=255_u8 {
            let c = match byte {
                0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
                _ => {
                    shifted += 1;
                    char::from_u32(shifted - 1).unwrap()
                }
            };
            vocab.insert(c.to_string(), json!(byte));
        }
        let special = |id: u32, content: &str| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": true})
        };
        let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
        let file = json!({
            "version": "1.0", "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
            "padding": null, "added_tokens": [special(256, "<s>"), special(257, "</s>")], "normalizer": null,
            "pre_tokenizer": level, "post_processor": null, "decoder": level,
            "model": {"type": "BPE", "vocab": vocab, "merges": []},
        });
        Tokenizer::from_bytes(file.to_string().into()).unwrap()
    }

    /// A BPE whose only tokens are bytes as `<0xNN>` (ids 0..=255), "▁" (256), "a" (257) and `<s>` (258).
    pub(crate) fn byte_fallback() -> Tokenizer {
        let mut vocab = serde_json::Map::new();
        for byte in 0..=255_u8 {
            vocab.insert(format!("<0x{byte:02X}>"), json!(byte));
        }
        vocab.insert("▁".to_owned(), json!(256));
        vocab.insert("a".to_owned(), json!(257));
        let special = json!({"id": 258, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
                             "normalized": false, "special": true});
        let file = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [special],
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
            "pre_tokenizer": null, "post_processor": null,
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
            "model": {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": true, "unk_token": null},
        });
        Tokenizer::from_bytes(file.to_string().into()).unwrap()
    }

    #[test]
    fn text_survives_the_round_trip_and_is_not_truncated() {
        let tokenizer = byte_level();
        let text = "naïve 中文 😀\n";
        let ids = tokenizer.encode(text).unwrap();
        assert_eq!(ids, text.bytes().map(u32::from).collect::<Vec<_>>());
        assert_eq!(tokenizer.decode(&ids).unwrap(), text);
        assert_eq!(tokenizer.vocab_size(), 258);
        assert_eq!(tokenizer.piece(0x20).as_deref(), Some("Ġ"));
        assert_eq!(tokenizer.piece(300), None);
    }

    #[test]
    fn special_tokens_in_the_text_are_one_token_each() {
        let tokenizer = byte_level();
        assert_eq!(tokenizer.encode("<s>a</s>").unwrap(), [256, 97, 257]);
        assert_eq!(tokenizer.decode(&[256, 97, 257]).unwrap(), "a");
    }

    #[test]
    fn plain_text_begins_with_bos_once() {
        let tokenizer = byte_level();
        let config = json!({"bos_token": {"content": "<s>"}, "add_bos_token": true});
        let special = SpecialTokens::from_config(&config);
        assert_eq!(tokenizer.encode_plain("a", &special).unwrap(), [256, 97]);
        assert_eq!(tokenizer.encode_plain("<s>a", &special).unwrap(), [256, 97]);
        let special = SpecialTokens { add_bos: false, ..special };
        assert_eq!(tokenizer.encode_plain("a", &special).unwrap(), [97]);
    }

    #[test]
    fn a_broken_file_is_an_error() {
        assert!(matches!(Tokenizer::from_bytes(b"{}".to_vec()), Err(TokenizerError::File(_))));
    }
}
