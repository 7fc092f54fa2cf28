//! `packlight probe`: what a page on another origin would meet.

use comfy_table::{Table, presets};
use packlight_http::Address;
use packlight_http::probe::{Check, Report, Status, probe};

use crate::args::ProbeArgs;
use crate::place;
use crate::report::Hinted;

pub(crate) fn run(args: &ProbeArgs) -> anyhow::Result<bool> {
    let address = Address::parse(&args.url)?.ok_or_else(|| {
        let message = format!("`{}` is not a URL", args.url);
        Hinted::new(message, "`packlight serve BUNDLE` gives a folder one")
    })?;
    let client = place::client()?;
    let folder = address.folder(client.hub());
    let report = probe(client, &folder)?;
    if args.json {
        let mut json = serde_json::to_value(&report)?;
        json["ok"] = report.ok().into();
        println!("{json}");
    } else {
        print(&report);
    }
    Ok(report.ok())
}

fn print(report: &Report) {
    println!("{} ({})", report.url, report.host);
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    for Check { name, status, found, .. } in &report.checks {
        let status = match status {
            Status::Pass => "pass",
            Status::Warn => "warn",
            Status::Fail => "FAIL",
        };
        table.add_row([status, name, found.as_str()]);
    }
    println!("{}", table.trim_fmt());
    for Check { name, fix, .. } in &report.checks {
        if let Some(fix) = fix {
            println!("{name}: {fix}");
        }
    }
    let count = |wanted| report.checks.iter().filter(|check| check.status == wanted).count();
    let verdict = if report.ok() { "ok" } else { "FAILED" };
    println!("{verdict}: {} warnings, {} failures", count(Status::Warn), count(Status::Fail));
}
