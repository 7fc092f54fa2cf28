//! Hosts as rows: what each takes, and what it can be told.

/// A place that serves files.
#[derive(Debug, PartialEq, Eq)]
pub struct Host {
    /// As in `--host NAME`.
    pub name: &'static str,
    /// The largest file.
    pub max_file_bytes: u64,
    /// The most files of a site (of a folder, on Hugging Face).
    pub max_files: Option<u64>,
    /// The most bytes of a site.
    pub max_bytes: Option<u64>,
    /// Whether it reads header rules from a file `_headers`.
    pub headers: bool,
    /// How pages on other origins are let in (CORS).
    pub cors: &'static str,
    /// Whether the limits are documented and were tried, or only likely.
    pub sure: bool,
}

const MB: u64 = 1_000_000;
const MIB: u64 = 1 << 20;
/// Below the host's own limit, since few say whether it is itself allowed.
const MARGIN: u64 = 64 << 10;
/// Browsers read a response of 2.0e9 bytes whole, and not much more.
const BROWSER: u64 = 2_000 * MB;

/// Every host. Numbers are decimal or binary as the host counts.
#[rustfmt::skip]
pub const HOSTS: &[Host] = &[
    Host { name: "cloudflare-pages", max_file_bytes: 25 * MIB - MARGIN,  max_files: Some(20_000), max_bytes: None,
           headers: true,  cors: "`_headers` allows every origin", sure: true },
    Host { name: "github-pages",     max_file_bytes: 100 * MB - MARGIN,  max_files: None,         max_bytes: Some(1_000 * MB),
           headers: false, cors: "always allowed", sure: true },
    Host { name: "huggingface",      max_file_bytes: BROWSER,            max_files: Some(10_000), max_bytes: None,
           headers: false, cors: "allowed under `/resolve/`", sure: true },
    Host { name: "s3",               max_file_bytes: BROWSER,            max_files: None,         max_bytes: None,
           headers: false, cors: "a setting of the bucket", sure: true },
    Host { name: "r2",               max_file_bytes: BROWSER,            max_files: None,         max_bytes: None,
           headers: false, cors: "a setting of the bucket", sure: true },
    Host { name: "jsdelivr",         max_file_bytes: 20 * MB - MARGIN,   max_files: None,         max_bytes: Some(150 * MB),
           headers: false, cors: "always allowed", sure: false },
    Host { name: "vercel-hobby",     max_file_bytes: 100 * MB - MARGIN,  max_files: None,         max_bytes: None,
           headers: false, cors: "headers in `vercel.json`", sure: false },
    Host { name: "firebase",         max_file_bytes: BROWSER - MARGIN,   max_files: None,         max_bytes: Some(10_000 * MB),
           headers: false, cors: "headers in `firebase.json`", sure: false },
    Host { name: "generic",          max_file_bytes: BROWSER,            max_files: None,         max_bytes: None,
           headers: false, cors: "as the server is set up", sure: true },
];

impl Host {
    /// The row of that name.
    pub fn find(name: &str) -> Option<&'static Self> {
        HOSTS.iter().find(|host| host.name == name)
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    /// `docs/hosts.md` has the rows as a table.
    #[test]
    fn the_documentation_has_every_row() {
        let number = |n: Option<u64>| n.map_or_else(String::new, |n| n.to_string());
        let mut table = String::from(
            "| host | bytes of a file | files | bytes in all | `_headers` | CORS | limits |\n|---|---|---|---|---|---|---|\n",
        );
        for Host { name, max_file_bytes, max_files, max_bytes, headers, cors, sure } in HOSTS {
            let (files, bytes) = (number(*max_files), number(*max_bytes));
            let headers = if *headers { "written" } else { "" };
            let sure = if *sure { "sure" } else { "likely" };
            writeln!(
                table,
                "| `{name}` | {max_file_bytes} | {files} | {bytes} | {headers} | {cors} | {sure} |"
            )
            .unwrap();
        }
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/hosts.md");
        let text = fs_err::read_to_string(path).unwrap();
        assert!(text.contains(&table), "docs/hosts.md should hold\n\n{table}");
    }

    /// A client that reads a file whole must be able to.
    #[test]
    fn no_row_asks_too_much_of_a_browser() {
        assert!(HOSTS.iter().all(|host| host.max_file_bytes <= BROWSER));
    }
}
