//! `packlight verify`: is every byte what the manifests say?

use anyhow::Context as _;
use indicatif::HumanBytes;
use packlight_pack::{Verification, VerifyOptions, verify};

use crate::args::VerifyArgs;
use crate::place::{self, Distant};

/// Files of a distant bundle that are read at once, whatever the number of cores.
const CONNECTIONS: usize = 4;

pub(crate) fn run(args: &VerifyArgs) -> anyhow::Result<bool> {
    let options = VerifyOptions { md5: args.all, allow_extra: args.allow_extra };
    let verification = match place::address(&args.bundle)? {
        Some(address) => {
            let distant = Distant::new(&address);
            let pool = rayon::ThreadPoolBuilder::new().num_threads(CONNECTIONS).build()?;
            pool.install(|| verify(&distant, options))
        }
        None => verify(args.bundle.as_path(), options),
    };
    let verification =
        verification.with_context(|| format!("`{}` cannot be verified", args.bundle.display()))?;
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
