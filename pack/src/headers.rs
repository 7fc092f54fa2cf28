//! `_headers`: rules for hosts that read them from the site.
//!
//! Cloudflare's dialect: a pattern has at most one `*`, which takes any characters, and any number of `:name`, which take
//! all but slashes; rules that match add up, and a header that two of them set has both values. So each header of a file
//! comes from one rule. A leading `/*` makes the rules hold wherever on the site the bundle is put.

use std::fmt::Write as _;

use packlight_formats::manifest::{Names, with_id};

use crate::sidecar::media_type;

const FOR_EVER: &str = "Cache-Control: public, max-age=31536000, immutable";

/// The rules for a bundle with these small files.
///
/// What is not named by its content keeps the host's own rule for caching, which is to ask again each time.
pub(crate) fn rules<'a>(names: Names, small: impl Iterator<Item = &'a str>) -> String {
    let mut text = String::from(
        "/*\n  Access-Control-Allow-Origin: *\n  Access-Control-Expose-Headers: Content-Range, ETag\n",
    );
    let mut rule = |pattern: &str, headers: &[&str]| {
        for pattern in [format!("/*{pattern}"), format!("/*{pattern}.:part")] {
            // Writing into a string cannot fail.
            let _ = writeln!(text, "{pattern}");
            for header in headers {
                let _ = writeln!(text, "  {header}");
            }
        }
    };
    // A host may compress what it does not take for binary, and then has no length or ranges.
    let binary = "Content-Type: application/octet-stream";
    match names {
        Names::Plain => rule(".bin", &[binary]),
        Names::Hashed => {
            rule(".bin", &[binary, FOR_EVER]);
            for name in small {
                let kind = format!("Content-Type: {}", media_type(name));
                rule(&with_id(name, ":id"), &[&kind, FOR_EVER]);
            }
        }
    }
    text
}
