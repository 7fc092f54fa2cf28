//! What ends an answer: token ids, and texts that may come in pieces.

/// Token ids and texts that end an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopRules {
    pub token_ids: Vec<u32>,
    pub texts: Vec<String>,
}

impl StopRules {
    pub fn is_stop(&self, token: u32) -> bool {
        self.token_ids.contains(&token)
    }
}

/// Hands text on until a stop text comes, holding back what may be the beginning of one.
pub struct StopFilter<'a> {
    texts: &'a [String],
    held: String,
    stopped: bool,
}

impl<'a> StopFilter<'a> {
    pub fn new(rules: &'a StopRules) -> Self {
        Self { texts: &rules.texts, held: String::new(), stopped: false }
    }

    /// The text that is surely part of the answer. Nothing comes after a stop text, nor the stop text itself.
    pub fn push(&mut self, text: &str) -> String {
        if self.stopped {
            return String::new();
        }
        self.held += text;
        let stops = self.texts.iter().filter(|stop| !stop.is_empty());
        if let Some(end) = stops.clone().filter_map(|stop| self.held.find(stop.as_str())).min() {
            self.stopped = true;
            self.held.truncate(end);
            return std::mem::take(&mut self.held);
        }
        let hold = stops.map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - hold);
        std::mem::replace(&mut self.held, rest)
    }

    /// Whether a stop text has come.
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// What was held back and turned out to be no stop text.
    pub fn finish(self) -> String {
        self.held
    }
}

/// Bytes at the end of `text` that are a proper beginning of `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let lengths = stop.char_indices().map(|(i, _)| i).filter(|&length| length > 0);
    lengths.rev().find(|&length| text.ends_with(&stop[..length])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn filtered(stops: &[&str], pieces: &[&str]) -> (Vec<String>, bool) {
        let texts = stops.iter().map(|&stop| stop.to_owned()).collect();
        let rules = StopRules { token_ids: vec![], texts };
        let mut filter = StopFilter::new(&rules);
        let mut out: Vec<_> = pieces.iter().map(|piece| filter.push(piece)).collect();
        let stopped = filter.stopped();
        out.push(filter.finish());
        (out, stopped)
    }

    fn owned(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|&text| text.to_owned()).collect()
    }

    #[test]
    fn a_stop_text_in_pieces_ends_the_answer() {
        let (out, stopped) = filtered(&["<|end|>"], &["yes<", "|end", "|>no", "more"]);
        assert!(stopped);
        assert_eq!(out, owned(&["yes", "", "", "", ""]));
    }

    #[test]
    fn what_only_began_like_one_is_handed_on() {
        let (out, stopped) = filtered(&["<|end|>", "é!"], &["a<", "|e", "x é", "?"]);
        assert!(!stopped);
        assert_eq!(out, owned(&["a", "", "<|ex ", "é?", ""]));
        assert_eq!(filtered(&["aab"], &["aa", "a"]).0, owned(&["", "a", "aa"]));
    }

    #[test]
    fn the_first_of_several_ends_it() {
        let (out, stopped) = filtered(&["b", "ab", ""], &["xabx"]);
        assert!(stopped);
        assert_eq!(out, owned(&["x", ""]));
    }

    proptest! {
        #[test]
        fn cuts_do_not_matter(text in "[abc]{0,24}", cut in 1..4_usize) {
            let chars: Vec<char> = text.chars().collect();
            let pieces: Vec<String> = chars.chunks(cut).map(|c| c.iter().collect()).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let (out, stopped) = filtered(&["abca", "bb"], &pieces);
            // A stop text counts as soon as it is complete: the one that ends first.
            let ends = ["abca", "bb"].iter().filter_map(|s| text.find(s).map(|at| (at + s.len(), at)));
            let expected = ends.min().map_or(text.as_str(), |(_, at)| &text[..at]);
            prop_assert_eq!(stopped, expected.len() < text.len());
            if cut == 1 {
                prop_assert_eq!(out.concat(), expected);
            }
        }
    }
}
