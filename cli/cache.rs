//! `packlight cache`: what was downloaded, and how it gets less.

use comfy_table::{CellAlignment, Table, presets};
use indicatif::{HumanBytes, HumanDuration};
use packlight_http::{Cached, Kind};
use serde_json::json;

use crate::args::CacheArgs;
use crate::place;

pub(crate) fn run(args: &CacheArgs) -> anyhow::Result<bool> {
    let cache = place::cache(&args.cache)?;
    let removed = args.limit.map(|limit| cache.limit(limit)).transpose()?.unwrap_or_default();
    let held = cache.list()?;
    if args.json {
        let entry = |cached: &Cached| json!({ "kind": cached.kind, "name": cached.name, "bytes": cached.bytes });
        let entries = |list: &[Cached]| list.iter().map(entry).collect::<Vec<_>>();
        println!(
            "{}",
            json!({ "folder": cache.folder().display().to_string(), "held": entries(&held), "removed": entries(&removed) })
        );
        return Ok(true);
    }
    for cached in &removed {
        println!("removed {} ({})", cached.name, HumanBytes(cached.bytes));
    }
    print(&held);
    println!("{} in `{}`", count(&held), cache.folder().display());
    Ok(true)
}

fn count(held: &[Cached]) -> String {
    match held.len() {
        1 => "1 download".into(),
        n => format!("{n} downloads"),
    }
}

fn print(held: &[Cached]) {
    if held.is_empty() {
        return;
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    for cached in held {
        let kind = match cached.kind {
            Kind::Bundle => "bundle",
            Kind::Checkpoint => "checkpoint",
        };
        let age = cached.used.elapsed().unwrap_or_default();
        let (bytes, age) = (HumanBytes(cached.bytes).to_string(), HumanDuration(age));
        table.add_row([kind.into(), bytes, format!("{age} ago"), cached.name.clone()]);
    }
    if let Some(column) = table.column_mut(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("{}", table.trim_fmt());
}
