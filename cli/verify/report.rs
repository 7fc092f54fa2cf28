//! What `verify` has found: data for machines, and a table for people.

use std::path::Path;

use comfy_table::{CellAlignment, Table, presets};
use indicatif::HumanBytes;
use packlight_formats::manifest::packlight::Generator;
use packlight_pack::Verification;
use packlight_runner::verify::Statistics;
use serde::Serialize;

use super::against::Against;
use super::device::Run;

/// Lines of one kind that are printed; the JSON has them all.
const SHOWN: usize = 20;

/// Everything.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Part 1: is the packing exact?
    #[serde(flatten)]
    pub(crate) bytes: Verification,
    /// What wrote the bundle, where more than its bytes was looked at, and what looks at it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) generator: Option<Generator>,
    pub(crate) verifier: &'static str,
    pub(crate) checks: Vec<Check>,
    /// Part 2: does the runner compute what the packed weights say?
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) run: Option<Run>,
    /// Part 3: what did quantisation cost?
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) against: Option<Against>,
    pub(crate) ok: bool,
}

/// One question and its answer.
#[derive(Debug, Serialize)]
pub(crate) struct Check {
    /// `bytes`, `run` or `against`.
    pub(crate) part: &'static str,
    pub(crate) name: &'static str,
    pub(crate) outcome: Outcome,
    /// What was found, and what it was held to.
    pub(crate) found: String,
    /// What is wrong, thing by thing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) problems: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Ok,
    /// Worth knowing; no failure.
    Note,
    Failed,
}

impl Check {
    pub(crate) fn new(
        part: &'static str,
        name: &'static str,
        holds: bool,
        found: impl Into<String>,
    ) -> Self {
        let outcome = if holds { Outcome::Ok } else { Outcome::Failed };
        Self { part, name, outcome, found: found.into(), problems: Vec::new() }
    }

    pub(crate) fn note(part: &'static str, name: &'static str, found: impl Into<String>) -> Self {
        Self { outcome: Outcome::Note, ..Self::new(part, name, true, found) }
    }

    /// Holds if there are no problems.
    pub(crate) fn of(
        part: &'static str,
        name: &'static str,
        found: impl Into<String>,
        problems: Vec<String>,
    ) -> Self {
        Self { problems, ..Self::new(part, name, true, found) }.judged()
    }

    fn judged(mut self) -> Self {
        if !self.problems.is_empty() {
            self.outcome = Outcome::Failed;
        }
        self
    }
}

impl Report {
    pub(crate) fn new(bytes: Verification) -> Self {
        let problems = bytes.problems.iter().map(ToString::to_string).collect();
        let found = format!("{} files, {} bytes", bytes.files, bytes.bytes);
        let checks = vec![Check::of("bytes", "sizes, hashes and manifests", found, problems)];
        let verifier = env!("CARGO_PKG_VERSION");
        Self { bytes, generator: None, verifier, checks, run: None, against: None, ok: false }
    }

    /// Whether nothing has failed so far.
    pub(crate) fn holds(&self) -> bool {
        self.checks.iter().all(|check| check.outcome != Outcome::Failed)
    }

    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        Ok(fs_err::write(path, serde_json::to_vec_pretty(self)?)?)
    }

    pub(crate) fn print(&self) {
        print_bytes(&self.bytes);
        if self.checks.len() == 1 {
            return;
        }
        if let Some(generator) = &self.generator {
            println!("written by {} {}", generator.name, generator.version);
        }
        if let Some(run) = &self.run {
            run.print();
        }
        if let Some(against) = &self.against {
            against.print();
        }
        println!();
        let mut table = table();
        for Check { part, name, outcome, found, .. } in &self.checks {
            let outcome = match outcome {
                Outcome::Ok => "ok",
                Outcome::Note => "note",
                Outcome::Failed => "FAILED",
            };
            table.add_row([outcome, part, name, found]);
        }
        println!("{}", table.trim_fmt());
        for check in &self.checks[1..] {
            print_some(&check.problems);
        }
        println!("{}", if self.ok { "ok" } else { "FAILED" });
    }
}

fn print_some(problems: &[String]) {
    for problem in problems.iter().take(SHOWN) {
        println!("problem: {problem}");
    }
    if problems.len() > SHOWN {
        println!("problem: ... and {} more", problems.len() - SHOWN);
    }
}

fn print_bytes(verification: &Verification) {
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

/// A table without lines.
pub(crate) fn table() -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table
}

/// llama-perplexity's figures as it prints them: changes of probability, and shares, in percent.
pub(crate) fn print_figures(statistics: &Statistics) {
    let mut table = table();
    for figure in statistics.figures() {
        let percent = figure.name.contains("Δp") || figure.name == "Same top p";
        let (factor, unit) = if percent { (100.0, " %") } else { (1.0, "") };
        let digits = if percent { 3 } else { 6 };
        let value = format!("{:.digits$}", factor * figure.value);
        let error = figure.error.map(|error| format!("± {:.digits$}", factor * error));
        table.add_row([figure.name, &value, &format!("{}{unit}", error.unwrap_or_default())]);
    }
    if let Some(column) = table.column_mut(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("{}", table.trim_fmt());
}
