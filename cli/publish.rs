//! `packlight publish`: a bundle goes to an object store.

use comfy_table::{CellAlignment, Table, presets};
use indicatif::{HumanBytes, ProgressBar};
use packlight_pack::{VerifyOptions, verify};
use packlight_publish::{Action, Options, Plan, Progress, Published, Release, Stage, Step, Store};
use serde_json::json;

use crate::args::PublishArgs;
use crate::report::Hinted;
use crate::{interrupt, progress};

pub(crate) fn run(args: &PublishArgs) -> anyhow::Result<bool> {
    let release = Release::open(&args.bundle)?;
    let store = Store::open(&args.url)?;
    refuse_damaged(args)?;
    let options = Options { concurrency: args.concurrency.into(), prune: args.prune };
    let plan = Plan::make(&release, &store, options)?;
    if args.dry_run {
        print_plan(args, &release, &store, &plan);
        return Ok(true);
    }
    interrupt::says("the same command goes on from here".into())?;
    let bar = Bar(progress::bytes(plan.bytes(), "publishing"));
    let published = plan.run(&bar)?;
    bar.0.finish_and_clear();
    print(args, &store, &published);
    Ok(true)
}

/// Nothing is sent of a bundle that is not what its manifests say.
fn refuse_damaged(args: &PublishArgs) -> anyhow::Result<()> {
    // Files that no manifest names are not published, so they do not matter.
    let options = VerifyOptions { md5: false, allow_extra: true };
    let found = verify(args.bundle.as_path(), options)?;
    let Some(first) = found.problems.first() else { return Ok(()) };
    let more = match found.problems.len() - 1 {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    let message = format!("`{}` is not published: {first}{more}", args.bundle.display());
    Err(Hinted::new(message, "`packlight verify` lists everything wrong with it").into())
}

struct Bar(ProgressBar);

impl Progress for Bar {
    fn sent(&self, bytes: u64) {
        self.0.inc(bytes);
    }
}

fn print_plan(args: &PublishArgs, release: &Release, store: &Store, plan: &Plan<'_>) {
    let (url, prunes) = (store.url(), args.prune);
    let removed: &[String] = if prunes { plan.stale() } else { &[] };
    if args.json {
        let json = json!({
            "url": url,
            "sha256": release.sha256(),
            "dry_run": true,
            "bytes": plan.bytes(),
            "steps": plan.steps(),
            "pruned": removed,
            "stale": if prunes { &[] } else { plan.stale() },
        });
        println!("{json}");
        return;
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    for Step { path, bytes, stage, action } in plan.steps() {
        let action = match action {
            Action::Send => "send",
            Action::Replace => "replace",
            Action::Keep => "is there",
        };
        let stage = match stage {
            Stage::Weights => "weights",
            Stage::Sidecars => "sidecars",
            Stage::Manifests => "manifests",
            Stage::Switch => "switch",
            Stage::After => "after it",
        };
        table.add_row([stage, action, path, &bytes.to_string()]);
    }
    for name in removed {
        table.add_row(["prune", "remove", name, ""]);
    }
    if let Some(column) = table.column_mut(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("{}", table.trim_fmt());
    println!("{url}: {} to be sent", HumanBytes(plan.bytes()));
    tell_of_stale(plan.stale().len() - removed.len());
}

fn print(args: &PublishArgs, store: &Store, published: &Published) {
    let Published { sha256, sent, bytes, kept, pruned, stale } = published;
    let url = store.url();
    if args.json {
        let json = json!({
            "url": url,
            "sha256": sha256,
            "dry_run": false,
            "bytes": bytes,
            "sent": sent,
            "kept": kept,
            "pruned": pruned,
            "stale": stale,
        });
        println!("{json}");
        return;
    }
    let count = sent.len();
    println!("{url}: {count} files sent ({}), {kept} were there", HumanBytes(*bytes));
    for name in pruned {
        println!("removed {name}");
    }
    println!("sha256 {sha256}");
    tell_of_stale(stale.len());
}

fn tell_of_stale(count: usize) {
    if count > 0 {
        eprintln!(
            "note: {count} files of earlier releases lie there; --prune removes them, once nobody is loading those any more"
        );
    }
}
