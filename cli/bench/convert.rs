//! `packlight bench convert`: what the stages of a conversion take, each on its own, and all of them together.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use comfy_table::{CellAlignment, Table, presets};
use fs_err::File;
use indicatif::ProgressBar;
use md5::{Digest, Md5};
use packlight_convert::{Checkpoint, Conversion, ConvertError};
use packlight_formats::quant::{Codes, Scheme};
use packlight_formats::record::RecordSpec;
use serde::Serialize;
use sha2::Sha256;

use super::{at_least_one, median};
use crate::convert::{self, Job};

/// Bytes that are hashed, read or written at a time.
const BLOCK: usize = 1 << 20;

/// Measure what the stages of a conversion take. The checkpoint should fit the system's cache of files.
#[derive(Debug, clap::Args)]
pub(crate) struct ConvertArgs {
    /// Folder with config.json and *.safetensors.
    checkpoint: PathBuf,
    /// Quantisation scheme.
    #[arg(long, default_value = Scheme::DEFAULT.name)]
    scheme: String,
    /// How codes are chosen; not gptq, which needs a text.
    #[arg(long, default_value = Codes::DEFAULT.name)]
    codes: String,
    /// Folder for what is written and removed again; default: the system's for temporary files.
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// Measurements of which the median counts.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = at_least_one)]
    repeat: usize,
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,
}

/// Everything that was measured. Times are medians, in seconds.
#[derive(Serialize)]
struct Report {
    scheme: &'static str,
    codes: &'static str,
    threads: usize,
    /// Bytes of the weights that are read, and of what becomes of them.
    source_bytes: u64,
    weight_bytes: u64,
    stages: Vec<Stage>,
    /// The whole conversion as a multiple of the MD5 of the checkpoint: what hashing a download costs anyway.
    times_md5: f64,
}

#[derive(Serialize)]
struct Stage {
    name: &'static str,
    /// Threads that it has in a conversion on this machine.
    threads: usize,
    bytes: u64,
    s: f64,
}

pub(crate) fn run(args: &ConvertArgs) -> anyhow::Result<bool> {
    let scheme = convert::scheme(&args.scheme)?;
    let codes = convert::codes(&args.codes)?;
    let open = || Checkpoint::open(&args.checkpoint);
    let checkpoint = open()?;
    let job = Job::usual(&checkpoint, scheme, codes)?;
    anyhow::ensure!(
        !codes.calibrates,
        "--codes {} needs a text, which takes most of the time",
        codes.name
    );
    let scratch = match &args.scratch {
        Some(folder) => tempfile::tempdir_in(folder)?,
        None => tempfile::tempdir()?,
    };
    let (source_bytes, weight_bytes) =
        (job.conversion.source_bytes(), job.records.iter().map(RecordSpec::stored_bytes).sum());
    let threads = rayon::current_num_threads();
    let whole = || {
        let bundle = scratch.path().join("bundle");
        job.write(job.draft()?, &bundle, &ProgressBar::hidden(), || Ok(()))?;
        Ok(fs_err::remove_dir_all(bundle)?)
    };
    let plan = || {
        Conversion::plan(&open()?, scheme, &[], codes)?;
        Ok(())
    };
    // For the system's cache.
    md5_of(&checkpoint)?;
    let stage = |name, threads, bytes, work: &mut dyn FnMut() -> anyhow::Result<()>| {
        anyhow::Ok(Stage { name, threads, bytes, s: median(args.repeat, || timed(&mut *work))? })
    };
    let sha256 = || {
        hash::<Sha256>(weight_bytes);
        Ok(())
    };
    let md5 = || {
        hash::<Md5>(weight_bytes);
        Ok(())
    };
    let stages = vec![
        stage("MD5 of the checkpoint", 1, source_bytes, &mut || md5_of(&checkpoint))?,
        stage("open and plan", 1, 0, &mut || plan())?,
        stage("read and quantise", threads, source_bytes, &mut || quantise(&job))?,
        stage("SHA-256", 1, weight_bytes, &mut || sha256())?,
        stage("MD5", 1, weight_bytes, &mut || md5())?,
        stage("write", 1, weight_bytes, &mut || write(scratch.path(), weight_bytes))?,
        stage("convert", threads, source_bytes, &mut || whole())?,
    ];
    let times_md5 = stages[stages.len() - 1].s / stages[0].s;
    let (scheme, codes) = (scheme.name, codes.name);
    let report = Report { scheme, codes, threads, source_bytes, weight_bytes, stages, times_md5 };
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print(&report);
    }
    Ok(true)
}

fn timed(work: &mut dyn FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_secs_f64())
}

/// As `md5sum` reads it.
fn md5_of(checkpoint: &Checkpoint) -> anyhow::Result<()> {
    let (mut md5, mut block) = (Md5::new(), vec![0; BLOCK]);
    for file in checkpoint.files() {
        let mut file = File::open(checkpoint.folder().join(&file.name))?;
        loop {
            match file.read(&mut block)? {
                0 => break,
                n => md5.update(&block[..n]),
            }
        }
    }
    std::hint::black_box(md5.finalize());
    Ok(())
}

fn quantise(job: &Job<'_>) -> anyhow::Result<()> {
    let wanted = vec![true; job.records.len()];
    job.conversion.stream(job.options, None, &wanted, |piece| {
        std::hint::black_box(&piece.bytes);
        Ok::<_, ConvertError>(())
    })?;
    Ok(())
}

/// What arrives from another thread is in a cache, as this is.
fn hash<D: Digest>(bytes: u64) {
    let (mut hash, block) = (D::new(), vec![7; BLOCK]);
    each_block(bytes, |length| hash.update(&block[..length]));
    std::hint::black_box(hash.finalize());
}

fn write(folder: &Path, bytes: u64) -> anyhow::Result<()> {
    let (mut file, block) = (tempfile::tempfile_in(folder)?, vec![7; BLOCK]);
    let mut written = Ok(());
    each_block(bytes, |length| {
        if written.is_ok() {
            written = file.write_all(&block[..length]);
        }
    });
    Ok(written?)
}

fn each_block(bytes: u64, mut take: impl FnMut(usize)) {
    let mut left = bytes;
    while left > 0 {
        let length = usize::try_from(left).map_or(BLOCK, |left| left.min(BLOCK));
        take(length);
        left -= length as u64;
    }
}

fn print(report: &Report) {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_FULL_CONDENSED);
    table.set_header(["stage", "threads", "s", "GB/s"]);
    for Stage { name, threads, bytes, s } in &report.stages {
        let speed =
            if *bytes > 0 { format!("{:.2}", *bytes as f64 / s / 1e9) } else { String::new() };
        table.add_row([(*name).to_owned(), threads.to_string(), format!("{s:.3}"), speed]);
    }
    for column in 1..4 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    println!("{table}");
    println!(
        "{} {}: {} bytes of weights become {}, in {:.2} times what their MD5 takes",
        report.scheme, report.codes, report.source_bytes, report.weight_bytes, report.times_md5
    );
}
