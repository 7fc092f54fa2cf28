//! Names of the files that a bundle is cut into, and names that change with the bytes.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::digest::sha256;

/// Digits of a content id.
const ID_DIGITS: usize = 16;

/// How files are named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Names {
    /// As MLC does.
    #[default]
    Plain,
    /// Each name carries a [`content_id`], so that a name never stands for other bytes.
    Hashed,
}

impl Names {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
    pub(super) fn is_plain(&self) -> bool {
        *self == Self::Plain
    }
}

/// Sixteen digits that stand for the bytes of a file: the first of its SHA-256 where it has one chunk, else of the
/// SHA-256 of its chunks' hashes, as they are spelled, one after another.
pub fn content_id<'a>(chunks: impl IntoIterator<Item = &'a String>) -> String {
    let chunks: Vec<&str> = chunks.into_iter().map(String::as_str).collect();
    let mut hash = match chunks[..] {
        [only] => only.to_owned(),
        _ => sha256(chunks.concat().as_bytes()),
    };
    hash.truncate(ID_DIGITS);
    hash
}

/// `params_shard_0.bin` with an id: `params_shard_0.0123456789abcdef.bin`.
pub fn with_id(name: &str, id: &str) -> String {
    match name.rsplit_once('.') {
        Some((stem, extension)) => format!("{stem}.{id}.{extension}"),
        None => format!("{name}.{id}"),
    }
}

/// The name and the id in it, if there is one: the way back from [`with_id`].
pub fn split_id(name: &str) -> Option<(String, &str)> {
    let is_id = |text: &str| {
        text.len() == ID_DIGITS && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    let (stem, last) = name.rsplit_once('.')?;
    if is_id(last) {
        return Some((stem.to_owned(), last));
    }
    let (stem, id) = stem.rsplit_once('.')?;
    is_id(id).then(|| (format!("{stem}.{last}"), id))
}

/// `NAME.part000`: the digits are three, or as many as the last of `count` parts needs.
pub fn part_name(name: &str, part: usize, count: usize) -> String {
    let digits = count.saturating_sub(1).to_string().len().max(3);
    format!("{name}.part{part:0digits$}")
}

/// A part's name without its number.
pub fn strip_part(name: &str) -> Option<&str> {
    let (stem, number) = name.rsplit_once(".part")?;
    (number.len() >= 3 && number.bytes().all(|b| b.is_ascii_digit())).then_some(stem)
}

/// The ranges that a file of `bytes` is cut into so that none is longer than `cap`. An empty file is one empty range.
pub fn cut(bytes: u64, cap: Option<u64>) -> impl ExactSizeIterator<Item = Range<u64>> + Clone {
    let cap = cap.unwrap_or(u64::MAX).max(1);
    let count = usize::try_from(bytes.div_ceil(cap).max(1)).unwrap_or(usize::MAX);
    (0..count).map(move |i| {
        let start = i as u64 * cap;
        start..bytes.min(start.saturating_add(cap))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ids_go_in_before_the_extension_and_come_out_again() {
        let id = "0123456789abcdef";
        for (name, expected) in [
            ("params_shard_0.bin", "params_shard_0.0123456789abcdef.bin"),
            ("tokenizer.json", "tokenizer.0123456789abcdef.json"),
            ("LICENSE", "LICENSE.0123456789abcdef"),
        ] {
            assert_eq!(with_id(name, id), expected);
            assert_eq!(split_id(expected), Some((name.to_owned(), id)));
        }
        for name in ["params_shard_0.bin", "tokenizer.json", "x", "a.0123456789ABCDEF.bin"] {
            assert_eq!(split_id(name), None, "{name}");
        }
    }

    #[test]
    fn an_id_is_the_hash_where_there_is_one() {
        let hash = sha256(b"abc");
        assert_eq!(content_id([&hash]), hash[..16]);
        let both = [hash.clone(), sha256(b"d")];
        assert_eq!(content_id(&both), sha256(both.concat().as_bytes())[..16]);
    }

    #[test]
    fn parts_have_as_many_digits_as_the_last_needs() {
        assert_eq!(part_name("s.bin", 7, 8), "s.bin.part007");
        assert_eq!(part_name("s.bin", 999, 1000), "s.bin.part999");
        assert_eq!(part_name("s.bin", 7, 1001), "s.bin.part0007");
        assert_eq!(strip_part("s.bin.part0007"), Some("s.bin"));
        assert_eq!(strip_part("s.bin.part07"), None);
        assert_eq!(strip_part("s.bin"), None);
    }

    proptest! {
        #[test]
        fn a_cut_file_is_whole_and_below_the_cap(bytes in 0..10_000_u64, cap in 1..3000_u64) {
            let ranges: Vec<_> = cut(bytes, Some(cap)).collect();
            let mut at = 0;
            for range in &ranges {
                prop_assert_eq!(range.start, at);
                prop_assert!(range.end - range.start <= cap);
                prop_assert!(range.end > range.start || bytes == 0);
                at = range.end;
            }
            prop_assert_eq!(at, bytes);
            prop_assert_eq!(ranges.len() as u64, bytes.div_ceil(cap).max(1));
        }
    }
}
