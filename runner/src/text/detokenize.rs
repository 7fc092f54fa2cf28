//! Tokens to text while they come: what is handed out is never taken back and never ends inside a character.

use super::tokenizer::{Tokenizer, TokenizerError};

/// A character of UTF-8 has at most four bytes, so at most this many tokens can be waiting for its end.
const LONGEST_CHARACTER: usize = 4;

/// Turns a stream of tokens into a stream of text; special tokens are skipped.
pub struct Detokenizer<'a> {
    tokenizer: &'a Tokenizer,
    /// The last tokens that gave text: decoders treat the first token of a text differently.
    context: Vec<u32>,
    /// Tokens whose text may still end inside a character.
    pending: Vec<u32>,
}

impl<'a> Detokenizer<'a> {
    pub fn new(tokenizer: &'a Tokenizer) -> Self {
        Self { tokenizer, context: Vec::new(), pending: Vec::new() }
    }

    /// The text that is complete with this token: often a piece, sometimes nothing.
    pub fn push(&mut self, token: u32) -> Result<String, TokenizerError> {
        self.pending.push(token);
        let text = self.pending_text()?;
        if !text.ends_with(char::REPLACEMENT_CHARACTER) {
            self.accept(&text);
            return Ok(text);
        }
        if self.pending.len() < LONGEST_CHARACTER {
            return Ok(String::new());
        }
        // The oldest token cannot belong to a character that is still open: its bytes are no UTF-8.
        let oldest = self.pending.remove(0);
        let rest = std::mem::replace(&mut self.pending, vec![oldest]);
        let text = self.pending_text()?;
        self.accept(&text);
        self.pending = rest;
        Ok(text)
    }

    /// What is left at the end: bytes of an unfinished character come as U+FFFD.
    pub fn finish(mut self) -> Result<String, TokenizerError> {
        if self.pending.is_empty() { Ok(String::new()) } else { self.pending_text() }
    }

    fn accept(&mut self, text: &str) {
        let pending = std::mem::take(&mut self.pending);
        if !text.is_empty() {
            self.context = pending;
        }
    }

    fn pending_text(&mut self) -> Result<String, TokenizerError> {
        let before = self.tokenizer.decode(&self.context)?;
        let both = self.tokenizer.decode(&[&self.context[..], &self.pending].concat())?;
        match both.strip_prefix(&before) {
            Some(text) => Ok(text.to_owned()),
            // Byte fallback decodes a run of byte tokens as a whole: a bad byte spoils what was already good.
            None => self.tokenizer.decode(&self.pending),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tokenizer::tests::{byte_fallback, byte_level};
    use super::*;

    fn pieces(tokenizer: &Tokenizer, tokens: &[u32]) -> Vec<String> {
        let mut stream = Detokenizer::new(tokenizer);
        let mut pieces: Vec<_> = tokens.iter().map(|&t| stream.push(t).unwrap()).collect();
        pieces.push(stream.finish().unwrap());
        pieces
    }

    #[test]
    fn a_character_comes_whole() {
        let bytes: Vec<u32> = "é😀".bytes().map(u32::from).collect();
        for tokenizer in [byte_level(), byte_fallback()] {
            assert_eq!(pieces(&tokenizer, &bytes), ["", "é", "", "", "", "😀", ""]);
        }
    }

    #[test]
    fn special_tokens_leave_no_trace() {
        let tokenizer = byte_level();
        assert_eq!(
            pieces(&tokenizer, &[256, 0xc3, 256, 0xa9, 257, 97]),
            ["", "", "", "é", "", "a", ""]
        );
    }

    #[test]
    fn only_the_first_space_of_a_text_is_stripped() {
        assert_eq!(pieces(&byte_fallback(), &[256, 257, 256, 257]), ["", "a", " ", "a", ""]);
    }

    #[test]
    fn bad_bytes_are_replaced_and_do_not_block_the_stream() {
        for (tokenizer, a) in [(byte_level(), 0x61), (byte_fallback(), 257)] {
            let pieces =
                pieces(&tokenizer, &[0xc3, 0xa9, 0xff, a, 0xff, 0xff, 0xff, 0xff, 0xff, a, 0xc3]);
            let expected = [
                "",
                "é",
                "",
                "\u{fffd}a",
                "",
                "",
                "",
                "\u{fffd}",
                "\u{fffd}",
                "\u{fffd}\u{fffd}\u{fffd}a",
                "",
                "\u{fffd}",
            ];
            assert_eq!(pieces, expected);
        }
    }

    /// How many U+FFFD stand for some bad bytes depends on where the decoder starts.
    fn without_repeats(text: &str) -> String {
        let mut chars: Vec<char> = text.chars().collect();
        chars.dedup_by(|a, b| a == b && *a == char::REPLACEMENT_CHARACTER);
        chars.into_iter().collect()
    }

    proptest! {
            #[test]
            fn the_pieces_of_a_text_are_the_text(text in "\\PC{0,20}") {
                let bytes: Vec<u32> = text.bytes().map(u32::from).collect();
                prop_assert_eq!(pieces(&byte_level(), &bytes).concat(), text.as_str());
            }

            #[test]
            fn any_bytes_give_what_decoding_them_at_once_gives(bytes in prop::collection::vec(0..256_u32, 0..40)) {
                let tokenizer = byte_level();
    let streamed = pieces(&tokenizer, &bytes).concat();
                let whole = tokenizer.decode(&bytes).unwrap();
                prop_assert_eq!(without_repeats(&streamed), without_repeats(&whole));
            }
        }
}
