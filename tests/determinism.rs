//! Output bytes depend on input bytes and options only (on being stopped: resume.rs; on packing again: packing.rs).

use crate::packlight;
use crate::support::{contents, converted, fixture, repo};
use tempfile::TempDir;

#[test]
fn threads_have_a_bound() {
    for threads in ["0", "1025", "100000000"] {
        let error = packlight!("convert", repo("demo"), "--dry-run", "--threads", threads).fails(2);
        assert!(error.contains("1..=1024"), "{error}");
    }
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
