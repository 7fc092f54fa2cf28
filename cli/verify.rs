//! `packlight verify`: is every byte what the manifests say?

use indicatif::HumanBytes;
use packlight_pack::{Verification, VerifyOptions, verify};

use crate::args::VerifyArgs;

pub(crate) fn run(args: &VerifyArgs) -> anyhow::Result<bool> {
    let options = VerifyOptions { md5: args.all, allow_extra: args.allow_extra };
    let verification = verify(&args.bundle, options)?;
    let ok = verification.problems.is_empty();
    if args.json {
        let mut report = serde_json::to_value(&verification)?;
        report["ok"] = ok.into();
        println!("{report}");
    } else {
        print(&verification);
    }
    Ok(ok)
}

fn print(verification: &Verification) {
    let Verification { files, bytes, chunks, md5_shards, sha256, problems } = verification;
    for problem in problems {
        println!("problem: {problem}");
    }
    let hashes = match (chunks, md5_shards) {
        (chunks, 0) => format!("{chunks} SHA-256 chunks"),
        (0, shards) => format!("{shards} MD5 sums"),
        (chunks, shards) => format!("{chunks} SHA-256 chunks and {shards} MD5 sums"),
    };
    let verdict = if problems.is_empty() { "ok" } else { "FAILED" };
    println!(
        "{verdict}: {files} files, {bytes} bytes ({}), {hashes} checked, {} problems",
        HumanBytes(*bytes),
        problems.len()
    );
    match sha256 {
        Some(sha256) => println!("sha256 {sha256}"),
        None => println!("no packlight.json: a plain MLC bundle, whose sidecars have no hashes"),
    }
}
