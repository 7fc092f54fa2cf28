//! Output bytes depend on input bytes and options only; kills and changes of plan leave nothing half-written.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::packlight;
use crate::support::{converted, fixture, repo};
use tempfile::TempDir;

/// Every file of a folder.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs_err::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|e| (e.file_name().into_string().unwrap(), fs_err::read(e.path()).unwrap()))
        .collect()
}

#[test]
fn threads_and_runs_do_not_change_a_byte() {
    let (_first, expected) = converted(&repo("demo"));
    let expected = contents(&expected);
    for threads in ["1", "2", "5"] {
        let folder = TempDir::new().unwrap();
        let bundle = folder.path().join("bundle");
        packlight!("convert", repo("demo"), "-o", bundle, "--threads", threads, "--codes", "mlc")
            .ok();
        assert!(contents(&bundle) == expected, "{threads} threads write other bytes");
    }
}

/// MLC's rule for shards is followed at any size: the records, joined in order, are always the same.
#[test]
fn shard_size_divides_but_does_not_change_the_records() {
    let whole = converted(&fixture("llama")).1;
    assert!(!whole.exists(), "the folder went with its guard");
    let mut sizes = Vec::new();
    for size in ["1", "1000", "32KiB", "100KB"] {
        let folder = TempDir::new().unwrap();
        let bundle = folder.path().join("bundle");
        packlight!(
            "convert",
            fixture("llama"),
            "-o",
            bundle,
            "--shard-bytes",
            size,
            "--codes",
            "mlc"
        )
        .ok();
        assert!(packlight!("verify", bundle, "--all").ok().starts_with("ok"));
        let prompt =
            packlight!("run", bundle, "--tokens", "5,6,7", "-n", "8", "--json", "--device", "cpu")
                .json();
        sizes.push(prompt["tokens"].clone());
    }
    assert!(sizes.windows(2).all(|pair| pair[0] == pair[1]));
}

/// Whenever a conversion is killed: no manifest or a whole bundle, and the same command finishes the job.
#[test]
fn a_killed_conversion_can_be_run_again() {
    let (_first, expected) = converted(&repo("demo"));
    let expected = contents(&expected);
    let folder = TempDir::new().unwrap();
    let bundle = folder.path().join("bundle");
    for delay_ms in [0, 5, 10, 20, 40, 80] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_packlight"))
            .args(["convert", "--codes", "mlc", "--force", "-o"])
            .args([&bundle, &repo("demo")])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(delay_ms));
        child.kill().unwrap();
        child.wait().unwrap();
        if bundle.join("packlight.json").is_file() {
            let extra = packlight!("verify", bundle, "--allow-extra");
            assert_eq!(extra.code, 0, "killed after {delay_ms} ms: {extra:?}");
        }
    }
    if bundle.join("packlight.json").is_file() {
        packlight!("convert", repo("demo"), "-o", bundle, "--codes", "mlc", "--force").ok();
    } else {
        packlight!("convert", repo("demo"), "-o", bundle, "--codes", "mlc").ok();
    }
    assert!(contents(&bundle) == expected, "what was left behind changed the bundle");
}
