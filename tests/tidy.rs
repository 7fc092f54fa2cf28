//! House rules that a machine can check.

use std::path::{Path, PathBuf};

use crate::support::repo;

/// Beyond this a file has more than one purpose.
const MAX_LINES: usize = 450;
/// All tracked files together.
const MAX_BYTES: u64 = 30_000_000;

/// Files that git tracks, or would.
fn tracked() -> Vec<PathBuf> {
    let args = ["ls-files", "--cached", "--others", "--exclude-standard"];
    let output =
        std::process::Command::new("git").args(args).current_dir(repo(".")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let names = String::from_utf8(output.stdout).unwrap();
    names.lines().map(repo).filter(|path| path.is_file()).collect()
}

fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    path.extension().is_some_and(|found| extensions.iter().any(|extension| found == *extension))
}

#[test]
fn files_have_one_purpose() {
    for path in tracked().iter().filter(|path| has_extension(path, &["rs", "wgsl", "js", "mjs"])) {
        let lines = fs_err::read_to_string(path).unwrap().lines().count();
        assert!(lines <= MAX_LINES, "{} has {lines} lines", path.display());
    }
}

/// What only the browser needs is thin: whatever can be elsewhere is tested there.
#[test]
fn the_engine_of_the_page_is_the_runner() {
    let sources = tracked().into_iter().filter(|path| path.starts_with(repo("web/src")));
    let lines: usize =
        sources.map(|path| fs_err::read_to_string(path).unwrap().lines().count()).sum();
    assert!((1..300).contains(&lines), "web/src has {lines} lines");
}

#[test]
fn the_repository_stays_small() {
    let bytes: u64 = tracked().iter().map(|path| fs_err::metadata(path).unwrap().len()).sum();
    assert!(bytes < MAX_BYTES, "{bytes} bytes are tracked");
}

#[test]
fn paths_named_in_documents_exist() {
    for document in ["README.md", "ARCHITECTURE.md"] {
        let text = fs_err::read_to_string(repo(document)).unwrap();
        let quoted = text.split('`').skip(1).step_by(2);
        let tops = [
            "formats/", "convert/", "pack/", "runner/", "http/", "publish/", "cli/", "web/",
            "tests/", "demo/", "docs/",
        ];
        let paths = quoted.filter(|text| {
            tops.iter().any(|top| text.starts_with(top)) && !text.contains([' ', '*', '<'])
        });
        for path in paths {
            assert!(repo(path).exists(), "{document} names `{path}`, which does not exist");
        }
    }
}

/// Invariants of ARCHITECTURE.md that can be read off manifests and sources.
#[test]
fn crates_know_only_what_they_may() {
    let manifest = |name: &str| fs_err::read_to_string(repo(name).join("Cargo.toml")).unwrap();
    for member in ["formats", "convert", "pack", "runner", "http", "publish"] {
        let text = manifest(member);
        let siblings = [
            "packlight-convert",
            "packlight-pack",
            "packlight-runner",
            "packlight-http",
            "packlight-publish",
        ];
        // One crate waits for many things at once; the others have threads.
        assert!(member == "publish" || !text.contains("tokio"), "{member} depends on tokio");
        for sibling in siblings.iter().filter(|sibling| text.contains(**sibling)) {
            assert_eq!(
                text.matches(sibling).count(),
                text.matches(&format!("name = \"{sibling}\"")).count(),
                "{member}"
            );
        }
    }
    let web = manifest("web");
    for member in ["packlight-convert", "packlight-pack", "packlight-http"] {
        assert!(!web.contains(member), "web depends on {member}");
    }
    let formats = manifest("formats");
    for forbidden in ["wgpu", "rayon", "fs-err", "memmap2", "tokio"] {
        assert!(!formats.contains(forbidden), "formats depends on {forbidden}");
    }
    for path in tracked().iter().filter(|path| has_extension(path, &["rs"])) {
        let text = fs_err::read_to_string(path).unwrap();
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let uses =
            code.filter(|line| line.contains("unsafe {") || line.contains("unsafe fn")).count();
        let allowed = ["convert/src/map.rs", "runner/src/gpu/trust.rs", "tests/tidy.rs"];
        let allowed = allowed.iter().any(|allowed| path.ends_with(allowed));
        assert!(uses == 0 || allowed, "{} uses unsafe code", path.display());
    }
}

#[test]
fn nothing_is_left_to_do_without_saying_so() {
    for path in tracked()
        .iter()
        .filter(|path| has_extension(path, &["rs", "wgsl", "js", "mjs", "md", "toml"]))
    {
        if path.ends_with("tests/tidy.rs") {
            continue;
        }
        let text = fs_err::read_to_string(path).unwrap();
        for word in ["TODO", "FIXME"] {
            assert!(!text.contains(word), "{} has a {word}", path.display());
        }
    }
}
