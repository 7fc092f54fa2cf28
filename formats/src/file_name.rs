//! Names of files that a manifest may give: they come from strangers and lead to files on somebody's disk.

/// What Windows keeps for devices, whatever the extension.
const RESERVED: [&str; 4] = ["con", "prn", "aux", "nul"];

/// A plain name on every system: nothing that leaves the folder, hides in it, or means a device.
pub fn is_file_name(name: &str) -> bool {
    let forbidden = |c: char| c.is_control() || "/\\:*?\"<>|".contains(c);
    !name.is_empty()
        && name.len() <= 255
        && !name.starts_with('.')
        && !name.ends_with(['.', ' '])
        && !name.contains(forbidden)
        && !is_reserved(name)
}

fn is_reserved(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or_default().trim_end().to_ascii_lowercase();
    let port = stem.strip_prefix("com").or_else(|| stem.strip_prefix("lpt"));
    RESERVED.contains(&stem.as_str())
        || port.is_some_and(|n| n.len() == 1 && n.bytes().all(|digit| digit.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for name in
            ["params_shard_0.bin", "tokenizer.json", "_headers", "a b", "común.txt", "console.json"]
        {
            assert!(is_file_name(name), "{name}");
        }
        let long = "x".repeat(256);
        for name in [
            "",
            ".",
            "..",
            "../x",
            "/etc/passwd",
            "a/b",
            "a\\b",
            "C:x",
            ".hidden",
            "x.",
            "x ",
            "a\0b",
            "a\nb",
            "CON",
            "nul.json",
            "Com1.bin",
            "lpt9",
            "aux .txt",
            "a*",
            "a?",
            "\"a\"",
            &long,
        ] {
            assert!(!is_file_name(name), "{name}");
        }
    }
}
