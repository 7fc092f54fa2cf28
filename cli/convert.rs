//! `packlight convert`: checkpoint in, bundle out.

use std::collections::BTreeMap;
use std::path::Path;

use comfy_table::{CellAlignment, Table, presets};
use indicatif::{HumanBytes, ProgressBar};
use packlight_convert::{
    Checkpoint, Conversion, ConvertError, OverrideRule, PlannedWeight, StreamOptions,
};
use packlight_formats::manifest::Requires;
use packlight_formats::manifest::packlight::About;
use packlight_formats::quant::{Codes, Rounding, Scheme, Storage};
use packlight_formats::record::RecordSpec;
use packlight_pack::{
    ClaimOptions, Contents, Cut, DEFAULT_SHARD_BYTES, Draft, Occupied, PackError, ShardPlan,
    Sidecar, Written, plan_shards,
};

use crate::args::{ConvertArgs, RoundingChoice};
use crate::calibration::Windows;
use crate::pack::{print_written, refuse_same, report_kept, warn_of_parts};
use crate::report::Hinted;
use crate::{calibration, interrupt, place, progress, sidecars};

pub(crate) fn run(args: &ConvertArgs) -> anyhow::Result<bool> {
    if let Some(threads) = args.threads {
        rayon::ThreadPoolBuilder::new().num_threads(threads.into()).build_global()?;
    }
    let (scheme, codes) = (scheme(&args.scheme)?, codes(&args.codes)?);
    let rounding = rounding(args.rounding, codes)?;
    let text = calibration::text(args.calibration.as_deref(), codes)?;
    let folder = place::checkpoint(&args.checkpoint, &args.cache)?;
    let checkpoint = Checkpoint::open_ignoring(&folder, &args.ignored_config_keys)?;
    let conversion = Conversion::plan(&checkpoint, scheme, &override_rules(args)?, codes)?;
    let calibration = text.map(|text| calibration::cut(&conversion, &text)).transpose()?;
    let records = conversion.records();
    let shards = plan_shards(&records, args.shard_bytes);
    let sidecars = sidecars::collect(
        &checkpoint,
        conversion.model.context,
        scheme,
        args.conv_template.as_deref(),
    )?;
    report_skipped(&conversion);
    if codes.name != Codes::DEFAULT.name && !conversion.quantises() {
        eprintln!("note: nothing is quantised, so --codes {} has no effect", codes.name);
    }
    for key in &args.ignored_config_keys {
        eprintln!(
            "warning: config key `{key}` is ignored: if it changes what the model computes, the bundle is wrong"
        );
    }
    for warning in &sidecars.warnings {
        eprintln!("warning: {warning}");
    }
    let occupied = if args.force { Occupied::Replace } else { Occupied::Refuse };
    if let Some(output) = &args.output {
        refuse_same(&args.checkpoint, output)?;
        Draft::check_folder(output, occupied)?;
    }
    let options = StreamOptions { allow_non_finite: args.allow_non_finite, rounding };
    let job = Job {
        conversion,
        records,
        shards,
        sidecars: sidecars.files,
        cut: args.cut.cut(),
        occupied,
        options,
        calibration,
    };
    let draft = job.draft()?;
    let shard_bytes = (job.shards.len() > 1).then_some(args.shard_bytes);
    warn_of_parts(&draft, shard_bytes);
    let Some(output) = args.output.as_ref().filter(|_| !args.dry_run) else {
        print_plan(&job, &draft);
        return Ok(true);
    };
    let bar = progress::bytes(0, "converting");
    let written = job.write(draft, output, &bar, || {
        let again = "the same command (without --force) goes on from here";
        let calibrates = if codes.calibrates { ", after calibrating anew" } else { "" };
        interrupt::says(format!("{again}{calibrates}"))
    })?;
    bar.finish_and_clear();
    print_written(output, &written, args.json);
    Ok(true)
}

/// A planned conversion and everything that it will write.
pub(crate) struct Job<'a> {
    pub(crate) conversion: Conversion<'a>,
    pub(crate) records: Vec<RecordSpec>,
    pub(crate) shards: Vec<ShardPlan>,
    pub(crate) sidecars: Vec<Sidecar>,
    pub(crate) cut: Cut,
    pub(crate) occupied: Occupied,
    pub(crate) options: StreamOptions,
    /// For a chooser that needs a text.
    pub(crate) calibration: Option<Windows>,
}

impl<'a> Job<'a> {
    /// A conversion without any choice but these.
    pub(crate) fn usual(
        checkpoint: &'a Checkpoint,
        scheme: &'static Scheme,
        codes: &'static Codes,
    ) -> anyhow::Result<Self> {
        let conversion = Conversion::plan(checkpoint, scheme, &[], codes)?;
        let records = conversion.records();
        Ok(Self {
            shards: plan_shards(&records, DEFAULT_SHARD_BYTES),
            sidecars: sidecars::collect(checkpoint, conversion.model.context, scheme, None)?.files,
            cut: Cut::default(),
            occupied: Occupied::Refuse,
            options: StreamOptions { allow_non_finite: false, rounding: Rounding::default() },
            calibration: None,
            records,
            conversion,
        })
    }

    /// What will be written, cut and checked against the limits of the host.
    pub(crate) fn draft(&self) -> Result<Draft, PackError> {
        let Self { conversion, records, shards, .. } = self;
        let about = About {
            scheme: conversion.assignment.usual().name.into(),
            overrides: conversion.overrides.clone(),
            codes: conversion.codes.name.into(),
            rounding: conversion.codes.rounds.then_some(self.options.rounding),
            calibration_sha256: self.calibration.as_ref().map(|text| text.sha256.clone()),
            source: conversion.provenance(),
            requires: Requires::of(&conversion.model, &conversion.assignment),
            model: conversion.model.clone(),
        };
        let (counted, sidecars) = (conversion.counted_parameters, self.sidecars.clone());
        Draft::new(Contents::of_records(about, records, shards, counted, sidecars), self.cut)
    }

    /// Joins the two crates that do not know each other: one's pieces become the other's shards. `begins` is called
    /// once the folder is ours.
    pub(crate) fn write(
        &self,
        draft: Draft,
        output: &Path,
        bar: &ProgressBar,
        begins: impl FnOnce() -> std::io::Result<()>,
    ) -> anyhow::Result<Written> {
        let Self { conversion, records, shards, options, .. } = self;
        let weights: u64 = records.iter().map(RecordSpec::stored_bytes).sum();
        let claim = draft.claim(
            output,
            ClaimOptions {
                occupied: self.occupied,
                origin: conversion.checkpoint().stamp()?,
                // Codes wait in a file, with scales that are twice as long there.
                scratch_bytes: if self.calibration.is_some() { 2 * weights } else { 0 },
            },
        )?;
        report_kept(&claim);
        begins()?;
        let wanted = claim.wanted(shards);
        // Of a calibrated bundle whose shards are all there, only small files are missing.
        let calibration = self.calibration.as_ref().filter(|_| wanted.contains(&true));
        let run = |text| calibration::run(conversion, text, *options, output);
        let compensated = calibration.map(run).transpose()?;
        bar.set_length(conversion.source_bytes_for(&wanted));
        let written = claim.write_records(records, shards, |push| {
            conversion.stream(*options, compensated.as_ref(), &wanted, |piece| {
                bar.inc(piece.source_bytes);
                push(piece.record, piece.bytes)
            })
        });
        written.map_err(|error: Failure| error.into())
    }
}

/// Either side of the joint may fail.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Convert(#[from] ConvertError),
    #[error(transparent)]
    Pack(#[from] PackError),
}

impl Failure {
    fn into(self) -> anyhow::Error {
        match self {
            Self::Convert(error) => error.into(),
            Self::Pack(error) => error.into(),
        }
    }
}

fn rounding(choice: Option<RoundingChoice>, codes: &Codes) -> Result<Rounding, Hinted> {
    match choice {
        Some(_) if !codes.rounds => Err(Hinted::new(
            format!("--rounding does not apply to --codes {}", codes.name),
            "leave it out, or use --codes mlc",
        )),
        Some(RoundingChoice::Away) => Ok(Rounding::Away),
        Some(RoundingChoice::Even) | None => Ok(Rounding::Even),
    }
}

/// A file of override rules.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Recipe {
    #[serde(rename = "override")]
    rules: Vec<RecipeRule>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct RecipeRule {
    pattern: String,
    scheme: String,
}

/// The rules of `--recipe`, then those of `--override`, which win.
fn override_rules(args: &ConvertArgs) -> anyhow::Result<Vec<OverrideRule>> {
    let mut rules = Vec::new();
    if let Some(path) = &args.recipe {
        let recipe: Recipe = toml::from_str(&fs_err::read_to_string(path)?).map_err(|error| {
            let hint =
                "a recipe is a list of [[override]] tables, each with `pattern` and `scheme`";
            Hinted::new(format!("`{}` is no recipe: {error}", path.display()), hint)
        })?;
        let rule = |RecipeRule { pattern, scheme }| OverrideRule { pattern, scheme };
        rules.extend(recipe.rules.into_iter().map(rule));
    }
    rules.extend(args.overrides.iter().cloned());
    Ok(rules)
}

pub(crate) fn scheme(name: &str) -> Result<&'static Scheme, Hinted> {
    Scheme::find(name).ok_or_else(|| unknown("scheme", name))
}

pub(crate) fn codes(name: &str) -> Result<&'static Codes, Hinted> {
    Codes::find(name).ok_or_else(|| unknown("chooser", name))
}

fn unknown(kind: &str, name: &str) -> Hinted {
    Hinted::new(format!("unknown {kind} `{name}`"), "see `packlight convert --help`")
}

fn report_skipped(conversion: &Conversion<'_>) {
    let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (tensor, reason) in &conversion.skipped {
        by_reason.entry(reason).or_default().push(tensor);
    }
    for (reason, tensors) in by_reason {
        // A vision tower has hundreds; the plan lists them all.
        match tensors[..] {
            [tensor] => eprintln!("skipped: {tensor} ({reason})"),
            [first, .., last] => {
                eprintln!("skipped: {} tensors, {first} to {last} ({reason})", tensors.len());
            }
            [] => {}
        }
    }
    let biased = |planned: &&PlannedWeight| planned.weight.name.ends_with("_proj.bias");
    let biases = conversion.weights.iter().filter(biased).count();
    if biases > 0 && conversion.model.architecture == "llama" {
        eprintln!(
            "warning: {biases} biases are kept as records; WebLLM's Llama library does not read them"
        );
    }
}

fn print_plan(job: &Job<'_>, draft: &Draft) {
    let Job { conversion, shards, sidecars, cut, .. } = job;
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["record", "dtype", "shape", "bytes", "shard", "scheme", "from"]);
    let mut record = 0;
    for PlannedWeight { weight, scheme, storage } in &conversion.weights {
        let scheme = match storage {
            Storage::Grouped { .. } => scheme.name,
            Storage::Plain(_) => "-",
        };
        for spec in storage.records() {
            let shard =
                shards.iter().position(|shard| shard.records.iter().any(|(i, _)| *i == record));
            table.add_row([
                spec.name.clone(),
                spec.dtype.to_string(),
                format!("{:?}", spec.shape),
                spec.stored_bytes().to_string(),
                shard.map_or_else(String::new, |shard| shard.to_string()),
                scheme.to_owned(),
                weight.recipe.to_string(),
            ]);
            record += 1;
        }
    }
    for column in [3, 4] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    println!("{}", table.trim_fmt());
    for (tensor, reason) in &conversion.skipped {
        println!("skipped {tensor}: {reason}");
    }
    for Sidecar { path, bytes } in sidecars {
        println!("file {path}: {} bytes", bytes.len());
    }
    let weights: u64 = shards.iter().map(|shard| shard.bytes).sum();
    println!(
        "{record} records, {weights} bytes ({}) in {} shards, from {} bytes ({}) of checkpoint",
        HumanBytes(weights),
        shards.len(),
        conversion.source_bytes(),
        HumanBytes(conversion.source_bytes()),
    );
    let host = cut.host.map_or_else(String::new, |host| format!(", within {}'s limits", host.name));
    println!(
        "{} files, {} bytes ({}){host}",
        draft.files(),
        draft.bytes(),
        HumanBytes(draft.bytes())
    );
}
