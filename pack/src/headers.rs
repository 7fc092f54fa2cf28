//! `_headers`: rules for hosts that read them from the site.
//!
//! Cloudflare's dialect: a pattern has at most one `*`, which takes any characters, and any number of `:name`, which take
//! all but slashes; rules that match add up, and a header that two of them set has both values. So each header of a file
//! comes from one rule. A leading `/*` makes the rules hold wherever on the site the bundle is put.

use std::fmt::Write as _;

use packlight_formats::manifest::{Names, with_id};

use crate::sidecar::{BINARY, media_type};

/// The rules for a bundle with these small files.
///
/// What is not named by its content keeps the host's own rule for caching, which is to ask again each time.
pub(crate) fn rules<'a>(names: Names, small: impl Iterator<Item = &'a str>) -> String {
    let mut text = String::from(
        "/*\n  Access-Control-Allow-Origin: *\n  Access-Control-Expose-Headers: Content-Range, ETag\n",
    );
    let mut rule = |pattern: &str, media_type: &str| {
        // Writing into a string cannot fail.
        let _ = writeln!(text, "/*{pattern}\n  Content-Type: {media_type}");
        if names == Names::Hashed {
            let _ = writeln!(text, "  Cache-Control: public, max-age=31536000, immutable");
        }
    };
    // A host may compress what it does not take for binary, and then has no length and no ranges.
    rule(".bin", BINARY);
    rule(".:name.part:number", BINARY);
    if names == Names::Hashed {
        for name in small {
            rule(&with_id(name, ":id"), media_type(name));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The dialect, as far as rules are written in it: the line's pattern as pieces that must follow each other.
    fn matches(pattern: &str, path: &str) -> bool {
        let mut pieces = Vec::new();
        let mut rest = pattern;
        while let Some(i) = rest.find(['*', ':']) {
            pieces.push(&rest[..i]);
            let name = rest[i + 1..].find(|c: char| !c.is_ascii_alphabetic());
            rest = if rest[i..].starts_with('*') {
                &rest[i + 1..]
            } else {
                &rest[name.map_or(rest.len(), |n| i + 1 + n)..]
            };
        }
        let mut at = path.strip_prefix(pieces[0]).unwrap_or_default();
        for piece in &pieces[1..] {
            let Some(i) = at.find(piece) else { return false };
            at = &at[i + piece.len()..];
        }
        at.ends_with(rest)
    }

    #[test]
    fn every_file_gets_each_header_once() {
        let id = "0123456789abcdef";
        let hashed = |name: &str| with_id(name, id);
        let rules = rules(Names::Hashed, ["tokenizer.json", "tokenizer_config.json"].into_iter());
        let headers = |path: &str| -> Vec<String> {
            let mut found = Vec::new();
            let mut on = false;
            for line in rules.lines() {
                match line.strip_prefix("  ") {
                    None => on = matches(line, path),
                    Some(header) if on => {
                        found.push(header.split(':').next().unwrap_or_default().to_owned());
                    }
                    Some(_) => {}
                }
            }
            found.sort();
            found
        };
        let cors = ["Access-Control-Allow-Origin", "Access-Control-Expose-Headers"];
        let all = [cors[0], cors[1], "Cache-Control", "Content-Type"];
        for folder in ["", "models/x/resolve/main/"] {
            for name in [
                hashed("params_shard_0.bin"),
                hashed("params_shard_0.bin") + ".part000",
                hashed("tokenizer.json"),
                hashed("tokenizer.json") + ".part012",
                hashed("tokenizer_config.json"),
            ] {
                assert_eq!(headers(&format!("/{folder}{name}")), all, "{folder}{name}");
            }
            for name in ["packlight.json", "tokenizer.json", "tensor-cache.json"] {
                assert_eq!(headers(&format!("/{folder}{name}")), cors, "{folder}{name}");
            }
        }
    }

    #[test]
    fn plain_names_are_not_cached_for_ever() {
        let rules = rules(Names::Plain, ["tokenizer.json"].into_iter());
        assert!(rules.contains("/*.bin\n  Content-Type: application/octet-stream\n"), "{rules}");
        assert!(!rules.contains("immutable") && !rules.contains("tokenizer"), "{rules}");
    }
}
