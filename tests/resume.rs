//! A conversion that is stopped, by whatever, goes on where it was and ends as if nothing had been.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::packlight;
use crate::support::{contents, copy, repo};

/// Many small shards, in parts.
const CUT: [&str; 4] = ["--shard-bytes", "100KB", "--max-file-bytes", "64KB"];
const JOURNAL: &str = ".packlight-journal";

fn arguments<'a>(checkpoint: &'a str, bundle: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec!["convert", checkpoint, "--codes", "mlc", "-o", bundle.to_str().unwrap()];
    args.extend(CUT);
    args.extend(more);
    args
}

#[track_caller]
fn convert(bundle: &Path, more: &[&str]) -> crate::support::Ran {
    crate::support::packlight(arguments("demo", bundle, more))
}

fn spawn(bundle: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_packlight"))
        .args(arguments("demo", bundle, &[]))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// What an uninterrupted run writes.
fn whole() -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let bundle = folder.path().join("whole");
    convert(&bundle, &[]).ok();
    (folder, bundle)
}

/// A bundle whose shards are all written, and no manifest: a folder stood where `tokenizer.json` belongs.
fn stopped(folder: &TempDir) -> PathBuf {
    let bundle = folder.path().join("stopped");
    fs_err::create_dir_all(bundle.join("tokenizer.json.part000")).unwrap();
    let error = convert(&bundle, &["--force"]).fails(2);
    assert!(error.contains("tokenizer.json.part000"), "{error}");
    fs_err::remove_dir(bundle.join("tokenizer.json.part000")).unwrap();
    assert!(bundle.join(JOURNAL).exists() && !bundle.join("packlight.json").exists());
    bundle
}

/// Sends a signal, as `kill` does.
fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

/// Waits until a process has begun to write, or has even ended.
fn begun(bundle: &Path) {
    let start = Instant::now();
    // The journal is locked before anything is written into it.
    let locked = || fs_err::metadata(bundle.join(JOURNAL)).is_ok_and(|file| file.len() > 0);
    while !locked() && !bundle.join("packlight.json").exists() {
        assert!(start.elapsed() < Duration::from_mins(1), "nothing is written");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A process that was stopped while it writes a bundle. It may be too quick for us: then once more.
fn halted(folder: &TempDir) -> (Child, PathBuf) {
    for attempt in 0..100 {
        let bundle = folder.path().join(format!("bundle{attempt}"));
        let mut child = spawn(&bundle);
        begun(&bundle);
        signal(&child, "-STOP");
        // By now it has stopped, or it had ended before.
        std::thread::sleep(Duration::from_millis(20));
        if bundle.join(JOURNAL).exists() {
            return (child, bundle);
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    panic!("every process was too quick");
}

/// SIGKILL, at many moments of a run: there is no manifest or a whole bundle, and what was written is kept.
#[test]
fn killed_at_any_moment_it_goes_on_and_ends_the_same() {
    let start = Instant::now();
    let (_folder, expected) = whole();
    let usual = start.elapsed();
    for round in 0..4 {
        let folder = TempDir::new().unwrap();
        let bundle = folder.path().join("bundle");
        for kill in 0..4 {
            let mut child = spawn(&bundle);
            // Spread over the run, and different in each round.
            std::thread::sleep(usual * (4 * kill + round + 1) / 16);
            child.kill().unwrap();
            child.wait().unwrap();
            if bundle.join("packlight.json").exists() {
                assert!(packlight!("verify", bundle, "--allow-extra").ok().starts_with("ok"));
            }
            // A folder with neither was made, and nothing more.
            if !bundle.join(JOURNAL).exists() && bundle.join("packlight.json").exists() {
                break;
            }
        }
        let is_shard = |name: &String| name.starts_with("params_shard_");
        let some = bundle.exists() && contents(&bundle).keys().any(is_shard);
        if bundle.join(JOURNAL).exists() || !bundle.join("packlight.json").exists() {
            let ran = convert(&bundle, &[]);
            assert_eq!(ran.stderr.contains("continuing: "), some, "{}", ran.stderr);
            ran.ok();
        }
        assert!(contents(&bundle) == contents(&expected), "round {round}");
    }
}

#[test]
fn what_is_there_is_hashed_again_and_not_trusted() {
    let (_folder, expected) = whole();
    let folder = TempDir::new().unwrap();
    let bundle = stopped(&folder);
    // One flipped bit, one file cut short, one gone.
    let parts = |i: usize| bundle.join(format!("params_shard_{i}.bin.part000"));
    let mut bytes = fs_err::read(parts(2)).unwrap();
    bytes[1000] ^= 16;
    fs_err::write(parts(2), &bytes).unwrap();
    fs_err::write(parts(5), &bytes[..10]).unwrap();
    fs_err::remove_file(parts(7)).unwrap();
    let ran = convert(&bundle, &[]);
    for part in ["params_shard_2.bin.part000", "params_shard_5.bin.part000"] {
        assert!(ran.stderr.contains(&format!("`{part}` has changed")), "{}", ran.stderr);
    }
    assert!(ran.stderr.contains("continuing: "), "{}", ran.stderr);
    ran.ok();
    assert!(contents(&bundle) == contents(&expected));
}

#[test]
fn another_conversion_is_not_continued() {
    let (_folder, expected) = whole();
    let folder = TempDir::new().unwrap();
    let bundle = stopped(&folder);
    let before = contents(&bundle);
    let refused = convert(&bundle, &["--scheme", "q4f32_1", "--names", "hashed"]).fails(2);
    insta::assert_snapshot!("other_options", masked(&refused, &bundle));
    // A fine-tune has the same config and headers: files written at another time are another checkpoint.
    let other = copy(&repo("demo"));
    let args = arguments(other.path().to_str().unwrap(), &bundle, &[]);
    let refused = crate::support::packlight(args).fails(2);
    assert!(refused.contains("source: not the same") && refused.contains("--force"), "{refused}");
    assert!(contents(&bundle) == before, "a refusal changed something");

    // Options that do not change a shard may differ.
    let ran = convert(&bundle, &["--threads", "1", "--allow-non-finite"]);
    assert!(ran.stderr.contains("continuing: "), "{}", ran.stderr);
    ran.ok();
    assert!(contents(&bundle) == contents(&expected));

    // `--force` starts over, and leaves nothing of what was there, finished or not.
    let folder = TempDir::new().unwrap();
    let bundle = stopped(&folder);
    convert(&bundle, &["--force", "--names", "hashed"]).ok();
    assert!(packlight!("verify", bundle, "--all").ok().starts_with("ok"));
    convert(&bundle, &["--force"]).ok();
    assert!(contents(&bundle) == contents(&expected));
}

fn masked(text: &str, bundle: &Path) -> String {
    let lines = text.lines().filter(|line| !line.starts_with("warning: "));
    lines.collect::<Vec<_>>().join("\n").replace(bundle.to_str().unwrap(), "BUNDLE")
}

#[test]
fn two_processes_do_not_write_into_one_folder() {
    let (_folder, expected) = whole();
    let folder = TempDir::new().unwrap();
    let (mut first, bundle) = halted(&folder);
    for more in [&[][..], &["--force"]] {
        let refused = convert(&bundle, more).fails(2);
        assert!(refused.contains("another process is writing into"), "{refused}");
        assert!(refused.contains("hint: wait until it is done"), "{refused}");
    }
    // The lock of a process that is no more does not last.
    first.kill().unwrap();
    first.wait().unwrap();
    convert(&bundle, &[]).ok();
    assert!(contents(&bundle) == contents(&expected));
}

#[test]
fn ctrl_c_says_how_to_go_on() {
    let (_folder, expected) = whole();
    // It may be caught between the journal and the handler, or be too quick for us: then once more.
    for delay_ms in 0..50 {
        let folder = TempDir::new().unwrap();
        let bundle = folder.path().join("bundle");
        let child = spawn(&bundle);
        begun(&bundle);
        std::thread::sleep(Duration::from_millis(delay_ms));
        signal(&child, "-INT");
        let output = child.wait_with_output().unwrap();
        if bundle.join(JOURNAL).exists() {
            convert(&bundle, &[]).ok();
        }
        assert!(!bundle.exists() || contents(&bundle) == contents(&expected));
        let said = String::from_utf8(output.stderr).unwrap();
        if output.status.code() == Some(130) {
            assert!(said.contains("stopped: the same command (without --force) goes on"), "{said}");
            return;
        }
    }
    panic!("it was never caught at work");
}

/// A limit on the size of files is an error like a full disk, which any user can have.
#[test]
#[cfg(unix)]
fn a_limit_of_the_system_loses_nothing() {
    let (_folder, expected) = whole();
    let folder = TempDir::new().unwrap();
    let bundle = folder.path().join("bundle");
    // Blocks of 1024 bytes: the sixth shard and the token table are larger.
    let script = r#"trap "" XFSZ; ulimit -f 60; exec "$0" "$@""#;
    let mut command = Command::new("bash");
    command.args(["-c", script, env!("CARGO_BIN_EXE_packlight")]);
    let output = command.args(arguments("demo", &bundle, &[])).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("writing `params_shard_") && said.contains("hint: make room"), "{said}");
    assert!(!bundle.join("packlight.json").exists());
    convert(&bundle, &[]).ok();
    assert!(contents(&bundle) == contents(&expected));
}

/// A real full disk: a small one in memory, where the tests may mount it.
#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_loses_nothing() {
    let (_folder, expected) = whole();
    let folder = TempDir::new().unwrap();
    let (disk, out) = (folder.path().join("disk"), folder.path().join("out"));
    fs_err::create_dir(&disk).unwrap();
    // There is room for the bytes, but not for the files; so it is not found out beforehand.
    let script = r#"
        disk="$1"; out="$2"; shift 2
        mount -t tmpfs -o size=64m,nr_inodes=12 none "$disk" || exit 77
        "$0" "$@"; [ $? = 2 ] || exit 1
        ls "$disk/bundle" | grep -q packlight.json && exit 2
        ls "$disk/bundle" | grep -q params_shard_ || exit 3
        mount -o remount,nr_inodes=10000 "$disk" || exit 4
        "$0" "$@" || exit 5
        cp -r "$disk/bundle" "$out"
        mount -o remount,size=$(($(du -sk "$disk" | cut -f1) + 64))k "$disk" || exit 8
        "$0" "$@" --force || exit 9
        rm -r "$disk/bundle"
        mount -o remount,size=1m "$disk" || exit 7
        "$0" "$@"; [ $? = 2 ] || exit 6
        exit 0
    "#;
    let mut command = Command::new("unshare");
    command.args(["-Urm", "sh", "-c", script, env!("CARGO_BIN_EXE_packlight")]);
    let bundle = disk.join("bundle");
    let output = command.arg(&disk).arg(&out).args(arguments("demo", &bundle, &[])).output();
    let output = match output {
        Ok(output) if !matches!(output.status.code(), Some(77)) => output,
        _ => {
            eprintln!("SKIPPED: no disk can be mounted here; a full one was not tried");
            return;
        }
    };
    let said = String::from_utf8(output.stderr).unwrap();
    if said.contains("unshare: ") {
        eprintln!("SKIPPED: no disk can be mounted here; a full one was not tried");
        return;
    }
    assert!(output.status.success(), "{:?}: {said}", output.status);
    assert!(said.contains("hint: make room and run the same command again"), "{said}");
    assert!(said.contains("continuing: "), "{said}");
    // Beforehand: what is known to be too little is refused at once.
    assert!(said.contains("has room for"), "{said}");
    assert!(contents(&out) == contents(&expected));
}

#[test]
fn packing_is_resumed_too() {
    let (folder, plain) = whole();
    let again = folder.path().join("again");
    fs_err::create_dir_all(again.join("tokenizer.json")).unwrap();
    let error = packlight!("pack", plain, "-o", again, "--force").fails(2);
    assert!(error.contains("tokenizer.json"), "{error}");
    fs_err::remove_dir(again.join("tokenizer.json")).unwrap();
    fs_err::remove_file(again.join("params_shard_3.bin")).unwrap();
    let ran = packlight!("pack", plain, "-o", again);
    assert!(ran.stderr.contains("continuing: "), "{}", ran.stderr);
    ran.ok();
    let direct = folder.path().join("direct");
    packlight!("convert", repo("demo"), "-o", direct, "--codes", "mlc", CUT[0], CUT[1]).ok();
    assert!(contents(&again) == contents(&direct));
}

/// gptq sees the whole model before it writes a shard, so it calibrates again, but keeps what it wrote.
#[test]
fn a_calibrated_conversion_keeps_its_shards() {
    let folder = TempDir::new().unwrap();
    let (bundle, expected) = (folder.path().join("bundle"), folder.path().join("expected"));
    let text = folder.path().join("text");
    fs_err::write(&text, "The capital of Italy is Rome. ".repeat(40)).unwrap();
    let convert = |bundle: &Path, more: &[&str]| {
        let mut args = vec!["convert", "demo", "--codes", "gptq", "-o", bundle.to_str().unwrap()];
        args.extend(["--calibration", text.to_str().unwrap(), "--shard-bytes", "300KB"]);
        args.extend(more);
        crate::support::packlight(args)
    };
    convert(&expected, &[]).ok();
    fs_err::create_dir_all(bundle.join("tokenizer.json")).unwrap();
    convert(&bundle, &["--force"]).fails(2);
    fs_err::remove_dir(bundle.join("tokenizer.json")).unwrap();
    fs_err::remove_file(bundle.join("params_shard_1.bin")).unwrap();
    let ran = convert(&bundle, &[]);
    assert!(ran.stderr.contains("continuing: "), "{}", ran.stderr);
    ran.ok();
    assert!(contents(&bundle) == contents(&expected));
}
