//! `packlight verify`: three questions, never mixed. Is the packing exact? Does the runner compute what the packed weights
//! say (`--run`)? What did quantisation cost (`--against`)?

mod against;
mod description;
mod device;
mod records;
mod report;
mod words;

use std::ops::ControlFlow;

use packlight_formats::manifest::packlight::{PACKLIGHT, Packlight};
use packlight_pack::{VerifyOptions, verify};
use packlight_runner::bundle::{Bundle, Trust};
use packlight_runner::generate::generate;
use packlight_runner::plan::Plan;
use packlight_runner::source::Folder;
use packlight_runner::text::Sampling;
use packlight_runner::verify::{Continuation, GREEDY_TOKENS, Greedy, Material};

use crate::args::VerifyArgs;
use crate::run;
use report::{Check, Report};
use words::Words;

pub(crate) fn run(args: &VerifyArgs) -> anyhow::Result<bool> {
    let options = VerifyOptions { md5: args.all, allow_extra: args.allow_extra };
    let verification = verify(&args.bundle, options)?;
    let manifest = fs_err::read(args.bundle.join(PACKLIGHT)).ok();
    let manifest = manifest.and_then(|json| Packlight::parse(&json).ok());
    let mut report = Report::new(verification, manifest.map(|manifest| manifest.generator));
    let more = args.run || args.against.is_some();
    if more && report.holds() {
        beyond_bytes(args, &mut report)?;
    } else if more {
        let why = "nothing else was looked at, as the bytes are wrong";
        report.checks.push(Check::note("bytes", "the rest", why));
    }
    report.ok = report.holds();
    if let Some(path) = &args.report {
        report.write(path)?;
    }
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        report.print();
    }
    Ok(report.ok)
}

fn beyond_bytes(args: &VerifyArgs, report: &mut Report) -> anyhow::Result<()> {
    let bundle = pollster::block_on(Bundle::open(Folder::new(&args.bundle), Trust::Nothing))?;
    let model = bundle.model();
    let plan = Plan::lower(model, bundle.assignment());
    let of_device = 2 * Material::text_length(&plan, model.context).max(1024);
    let of_cost = args.windows.saturating_mul(args.context.min(model.context));
    let words = Words::of(&bundle, args.text.as_deref(), of_device.max(of_cost) as usize)?;
    if args.run {
        let (checks, run) = device::check(args, &bundle, &words)?;
        report.checks.extend(checks);
        report.run = run;
    }
    if let Some(folder) = &args.against {
        if words.sha256.is_some() && words.sha256 == bundle.manifest().calibration_sha256 {
            let why =
                "the text is the one that the bundle was calibrated with: figures are too good";
            report.checks.push(Check::note("against", "text", why));
        }
        let said = match &report.run {
            Some(run) => run.greedy.iter().take(words.prompts()).map(continuation).collect(),
            None => continuations(args, &bundle, &words)?,
        };
        let (checks, against) = against::check(args, folder, &bundle, &words, &said)?;
        report.checks.extend(checks);
        report.against = against;
    }
    Ok(())
}

fn continuation(greedy: &Greedy) -> Continuation {
    Continuation { prompt: greedy.prompt.clone(), tokens: greedy.tokens.clone() }
}

/// What the bundle says after each short prompt.
fn continuations(
    args: &VerifyArgs,
    bundle: &Bundle<Folder>,
    words: &Words,
) -> anyhow::Result<Vec<Continuation>> {
    let (plan, limit) = (Plan::lower(bundle.model(), bundle.assignment()), bundle.model().context);
    let mut prompts = words.material(&plan, limit).prompts;
    prompts.truncate(words.prompts());
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let context = u32::try_from(longest).unwrap_or(u32::MAX).saturating_add(GREEDY_TOKENS);
    let mut engine = run::load(bundle, args.device, args.caps, context)?;
    let said = prompts.into_iter().map(|prompt| {
        engine.reset();
        let go_on = |_| ControlFlow::Continue(());
        let said = generate(&mut engine, &prompt, GREEDY_TOKENS, Sampling::GREEDY, go_on);
        Ok(Continuation { tokens: pollster::block_on(said)?.tokens, prompt })
    });
    said.collect()
}
