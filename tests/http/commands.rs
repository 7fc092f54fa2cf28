//! `run`, `verify` and `inspect` take an address where they take a folder.

use insta::assert_snapshot;
use tempfile::TempDir;

use super::host::{Answer, Asked, Host};
use super::{bundle, files};
use crate::packlight;

const TOKENS: [&str; 6] = ["--tokens", "1,2,3", "-n", "4", "--device", "cpu"];

fn run(place: &str, cache: &TempDir) -> crate::support::Ran {
    let args = ["run", place, "--json", "--cache", cache.path().to_str().unwrap()];
    crate::support::packlight(args.into_iter().chain(TOKENS))
}

#[test]
fn a_bundle_runs_from_its_address_and_without_a_network() {
    let cache = TempDir::new().unwrap();
    let expected = run(bundle().to_str().unwrap(), &cache).json()["tokens"].clone();
    let host = Host::new(files(bundle()), |_| Answer::Honest);
    assert_eq!(run(&host.url(), &cache).json()["tokens"], expected);
    let url = host.url();
    drop(host);
    let ran = run(&url, &cache);
    assert!(
        ran.stderr.contains("note: going on with what was downloaded before"),
        "{}",
        ran.stderr
    );
    assert_eq!(ran.json()["tokens"], expected);
    let error = run(&url, &TempDir::new().unwrap()).fails(2);
    assert!(error.contains("cannot be reached") && error.contains("hint: check"), "{error}");
    let error = packlight!("verify", url).fails(2);
    assert!(error.contains("cannot be reached") && error.contains("hint: check"), "{error}");
}

#[test]
fn verify_reads_every_byte_of_a_distant_bundle() {
    let host = Host::new(files(bundle()), |_| Answer::Honest);
    let near = packlight!("verify", bundle(), "--all").ok();
    assert_eq!(packlight!("verify", host.url(), "--all").ok(), near);
    // Each file once, and both manifests once more.
    let listed = files(bundle()).len();
    assert!(host.log().len() <= listed + 4, "{} requests for {listed} files", host.log().len());
}

#[test]
fn verify_lists_all_that_is_wrong_with_a_host() {
    let host = Host::new(files(bundle()), |asked: &Asked| match asked.path.as_str() {
        "/params_shard_0.bin" => Answer::Flip,
        "/params_shard_1.bin" => Answer::Status(404, vec![]),
        "/params_shard_2.bin" => Answer::Shorter(7),
        "/params_shard_3.bin" => Answer::Html,
        "/params_shard_5.bin" => Answer::Longer,
        "/params_shard_4.bin" => Answer::With(vec![("Content-Encoding", "gzip".into())]),
        _ => Answer::Honest,
    });
    let ran = packlight!("verify", host.url());
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    let masked: String = ran
        .stdout
        .lines()
        .filter(|line| line.starts_with("problem"))
        .map(|line| format!("{line}\n"))
        .collect();
    assert_snapshot!("verify_url", masked.replace(&host.url(), "URL/"));
}

#[test]
fn inspect_reads_manifests_only() {
    let host = Host::new(files(bundle()), |_| Answer::Honest);
    let cache = TempDir::new().unwrap();
    let near = packlight!("inspect", bundle()).ok();
    assert_eq!(packlight!("inspect", host.url(), "--cache", cache.path()).ok(), near);
    assert_eq!(host.shard_requests(), 0);
    let listed = packlight!("cache", "--cache", cache.path(), "--json").json();
    assert_eq!(listed["held"][0]["name"], host.url());
    let emptied = packlight!("cache", "--cache", cache.path(), "--limit", "0").ok();
    assert!(emptied.starts_with("removed http://"), "{emptied}");
}

#[test]
fn addresses_that_are_none_say_so() {
    let host = Host::new(std::collections::BTreeMap::new(), |_| Answer::Honest);
    let cache = TempDir::new().unwrap();
    let nothing = run(&host.url(), &cache).fails(2);
    assert!(nothing.contains("there is no bundle"), "{nothing}");
    let nothing = packlight!("verify", host.url()).fails(2);
    assert!(nothing.contains("is not a bundle"), "{nothing}");
    for (address, message) in [("ftp://a/b", "reads http://"), ("hf://a/b/c", "hf://owner/name")] {
        let error = run(address, &cache).fails(2);
        assert!(error.contains(message) && error.contains("hint:"), "{error}");
    }
    let converted = packlight!("convert", "https://a.invalid/b", "--dry-run").fails(2);
    assert!(
        converted.contains("cannot be converted") && converted.contains("hf://"),
        "{converted}"
    );
}

/// Whoever pastes a password or a signature does not want it in a log.
#[test]
fn secrets_in_addresses_are_not_repeated() {
    let cache = TempDir::new().unwrap();
    for address in [
        "https://me:s3cret@a.invalid/b",
        "https://a.invalid/b?X-Amz-Signature=s3cret",
        "s3://KEY:s3cret@bucket/b",
    ] {
        for command in ["run", "verify", "inspect", "convert", "probe"] {
            let more: &[&str] = match command {
                "run" => &TOKENS,
                "convert" => &["--dry-run"],
                _ => &[],
            };
            let args = [command, address].into_iter().chain(more.iter().copied());
            let error = crate::support::packlight(args).fails(2);
            assert!(!error.contains("s3cret") && error.contains("hint:"), "{command}: {error}");
        }
    }
    let mut command = crate::support::command(["run", "hf://o/n", "--cache"]);
    command.arg(cache.path()).args(TOKENS).env("HF_ENDPOINT", "https://me:s3cret@a.invalid");
    let error = crate::support::ran(&command.output().unwrap()).fails(2);
    assert!(!error.contains("s3cret") && error.contains("HF_ENDPOINT"), "{error}");
    assert!(error.contains("hint:") && error.contains("HF_TOKEN"), "{error}");
}
