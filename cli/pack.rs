//! `packlight pack`: a bundle is cut anew for another host.

use std::path::Path;

use indicatif::HumanBytes;
use packlight_pack::{Claim, ClaimOptions, Draft, Occupied, Source, Written};
use serde_json::json;

use crate::args::PackArgs;
use crate::report::Hinted;
use crate::{interrupt, progress};

pub(crate) fn run(args: &PackArgs) -> anyhow::Result<bool> {
    refuse_same(&args.bundle, &args.output)?;
    let source = Source::open(&args.bundle)?;
    let draft = Draft::new(source.contents()?, args.cut.cut())?;
    warn_of_parts(&draft, None);
    let options = ClaimOptions {
        occupied: if args.force { Occupied::Replace } else { Occupied::Refuse },
        origin: source.sha256().to_owned(),
        scratch_bytes: 0,
    };
    let claim = draft.claim(&args.output, options)?;
    report_kept(&claim);
    interrupt::says("the same command (without --force) goes on from here".into())?;
    let bar = progress::bytes(source.shard_bytes() - claim.kept_bytes(), "packing");
    let written = source.copy(claim, |bytes| bar.inc(bytes))?;
    bar.finish_and_clear();
    print_written(&args.output, &written, args.json);
    Ok(true)
}

/// `--force` would empty the folder before it is read.
pub(crate) fn refuse_same(input: &Path, output: &Path) -> Result<(), Hinted> {
    let same = match (input.canonicalize(), output.canonicalize()) {
        (Ok(input), Ok(output)) => input == output,
        _ => false,
    };
    if same {
        let message = format!("`{}` cannot be both read and written", input.display());
        return Err(Hinted::new(message, "choose another output folder"));
    }
    Ok(())
}

/// What plain WebLLM cannot read without help. `shard_bytes` is said where the user can choose it.
pub(crate) fn warn_of_parts(draft: &Draft, shard_bytes: Option<u64>) {
    let (parts, cap) = (draft.in_parts(), draft.cap().unwrap_or(u64::MAX));
    for name in draft.compacted() {
        eprintln!("note: `{name}` is written without white space, to be smaller");
    }
    let Some((first, bytes)) = parts.first() else { return };
    let more = match parts.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    eprintln!(
        "warning: `{first}` ({}){more} will be stored in parts of {}; packlight reads them, WebLLM needs a service worker that joins them",
        HumanBytes(*bytes),
        HumanBytes(cap)
    );
    // A shard of small tensors need not be that large.
    if shard_bytes.is_some_and(|bytes| bytes > cap) {
        eprintln!("hint: with --shard-bytes {cap} only single tensors larger than that are cut");
    }
}

/// What a stopped run has left.
pub(crate) fn report_kept(claim: &Claim) {
    for path in claim.damaged() {
        eprintln!("warning: `{path}` has changed since it was written: it is made again");
    }
    match claim.kept() {
        0 => {}
        1 => eprintln!("continuing: 1 file ({}) is there", HumanBytes(claim.kept_bytes())),
        files => {
            eprintln!("continuing: {files} files ({}) are there", HumanBytes(claim.kept_bytes()));
        }
    }
}

pub(crate) fn print_written(output: &Path, written: &Written, json: bool) {
    let Written { files, bytes, sha256 } = written;
    // A path need not be text.
    let folder = output.display().to_string();
    if json {
        println!(
            "{}",
            json!({ "output": folder, "files": files, "bytes": bytes, "sha256": sha256 })
        );
    } else {
        println!(
            "{folder}: {files} files, {bytes} bytes ({}), sha256 {sha256}",
            HumanBytes(*bytes)
        );
    }
}
