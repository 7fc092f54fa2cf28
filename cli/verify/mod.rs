//! `packlight verify`: three questions, never mixed. Is the packing exact? Does the runner compute what the packed weights
//! say (`--run`)? What did quantisation cost (`--against`)?

mod against;
mod description;
mod device;
mod records;
mod report;
mod tensors;
mod words;

use std::ops::ControlFlow;

use anyhow::Context as _;
use packlight_http::Address;
use packlight_pack::{Verification, VerifyOptions, verify};
use packlight_runner::bundle::{Bundle, Trust};
use packlight_runner::generate::generate;
use packlight_runner::plan::Plan;
use packlight_runner::text::Sampling;
use packlight_runner::verify::{Continuation, GREEDY_TOKENS, Greedy, Material};

use crate::args::VerifyArgs;
use crate::place::{self, Distant, Place};
use crate::run;
use report::{Check, Report};
use words::Words;

/// Files of a distant bundle that are read at once, whatever the number of cores.
const CONNECTIONS: usize = 4;

pub(crate) fn run(args: &VerifyArgs) -> anyhow::Result<bool> {
    // What is no address may hold secrets: only its own error knows how to say it.
    let address = place::address(&args.bundle)?;
    let verification = bytes(args, address.as_ref())
        .with_context(|| format!("`{}` cannot be verified", args.bundle.display()))?;
    let mut report = Report::new(verification);
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

/// Part 1.
fn bytes(args: &VerifyArgs, address: Option<&Address>) -> anyhow::Result<Verification> {
    let options = VerifyOptions { md5: args.all, allow_extra: args.allow_extra };
    let Some(address) = address else { return Ok(verify(args.bundle.as_path(), options)?) };
    let distant = Distant::new(address)?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(CONNECTIONS).build()?;
    Ok(pool.install(|| verify(&distant, options))?)
}

fn beyond_bytes(args: &VerifyArgs, report: &mut Report) -> anyhow::Result<()> {
    let place = Place::open(&args.bundle, &args.cache)?;
    let bundle = pollster::block_on(Bundle::open(place, Trust::Nothing))?;
    for note in bundle.notes() {
        eprintln!("note: {note}");
    }
    report.generator = bundle.manifest().map(|manifest| manifest.generator.clone());
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
        let calibration = bundle.about().and_then(|about| about.calibration_sha256.as_ref());
        if calibration.is_some() && words.sha256.as_ref() == calibration {
            let why =
                "the text is the one that the bundle was calibrated with: figures are too good";
            report.checks.push(Check::note("against", "text", why));
        }
        let said = match &report.run {
            Some(run) => run.greedy.iter().take(words.prompts()).map(continuation).collect(),
            None => continuations(args, &bundle, &words)?,
        };
        let folder = place::checkpoint(folder, &args.cache)?;
        let (checks, against) = against::check(args, &folder, &bundle, &words, &said)?;
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
    bundle: &Bundle<Place>,
    words: &Words,
) -> anyhow::Result<Vec<Continuation>> {
    let (plan, limit) = (Plan::lower(bundle.model(), bundle.assignment()), bundle.model().context);
    let mut prompts = words.material(&plan, limit).prompts;
    prompts.truncate(words.prompts());
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let context = u32::try_from(longest).unwrap_or(u32::MAX).saturating_add(GREEDY_TOKENS);
    let mut engine = run::load(bundle, args.device, args.caps.caps, context)?;
    let said = prompts.into_iter().map(|prompt| {
        engine.reset();
        let go_on = |_| ControlFlow::Continue(());
        let said = generate(&mut engine, &prompt, GREEDY_TOKENS, Sampling::GREEDY, go_on);
        let tokens = match pollster::block_on(said) {
            // The predictions say so.
            Err(error) if error.is_of_logits() => Vec::new(),
            said => said?.tokens,
        };
        Ok(Continuation { tokens, prompt })
    });
    said.collect()
}
