//! `packlight inspect`: what a bundle or a checkpoint holds.

use anyhow::Context as _;
use indicatif::HumanBytes;
use packlight_convert::{Checkpoint, Conversion};
use packlight_formats::manifest::packlight::{PACKLIGHT, Packlight};
use packlight_formats::model::Model;
use packlight_formats::quant::{Assignment, Codes, Scheme};
use packlight_runner::bundle::{Bundle, Trust};
use packlight_runner::plan::Plan;
use serde_json::json;

use crate::args::InspectArgs;
use crate::place::{self, Place};

pub(crate) fn run(args: &InspectArgs) -> anyhow::Result<bool> {
    let distant = place::address(&args.path)?.is_some();
    if distant || args.path.join(PACKLIGHT).is_file() { bundle(args) } else { checkpoint(args) }?;
    Ok(true)
}

fn bundle(args: &InspectArgs) -> anyhow::Result<()> {
    let place = Place::open(&args.path, &args.cache)?;
    let bundle = pollster::block_on(Bundle::open(place, Trust::Nothing))
        .with_context(|| format!("`{}` cannot be inspected", args.path.display()))?;
    let manifest = bundle.manifest();
    if args.json {
        println!("{}", json!({ "sha256": bundle.sha256(), "manifest": manifest }));
        return Ok(());
    }
    let Packlight { generator, scheme, codes, source, requires, files, .. } = manifest;
    println!("bundle      sha256 {}", bundle.sha256());
    println!("written by  {} {}", generator.name, generator.version);
    println!("scheme      {scheme}, codes {codes}");
    println!("source      {} tensors, {}", source.tensors, HumanBytes(source.bytes));
    println!("weights     {} in {} files", HumanBytes(requires.weight_bytes), files.len());
    println!(
        "largest     {} ({})",
        requires.largest_tensor,
        HumanBytes(requires.largest_tensor_bytes)
    );
    println!(
        "device      {} with {} positions of context",
        HumanBytes(requires.device_bytes),
        requires.context
    );
    print_model(bundle.model(), bundle.assignment());
    Ok(())
}

fn checkpoint(args: &InspectArgs) -> anyhow::Result<()> {
    let checkpoint = Checkpoint::open(&args.path)?;
    let conversion = Conversion::plan(&checkpoint, Scheme::DEFAULT, &[], Codes::DEFAULT)?;
    if args.json {
        let skipped: Vec<_> = conversion
            .skipped
            .iter()
            .map(|(tensor, why)| json!({ "tensor": tensor, "why": why }))
            .collect();
        let source = conversion.provenance();
        println!("{}", json!({ "source": source, "model": conversion.model, "skipped": skipped }));
        return Ok(());
    }
    println!(
        "checkpoint  {} files, {}",
        checkpoint.files().len(),
        HumanBytes(conversion.source_bytes())
    );
    for (tensor, why) in &conversion.skipped {
        println!("skipped     {tensor} ({why})");
    }
    print_model(&conversion.model, &conversion.assignment);
    Ok(())
}

fn print_model(model: &Model, assignment: &Assignment) {
    let Model { architecture, vocab, hidden, context, layers, .. } = model;
    println!(
        "model       {architecture}: {} layers, hidden {hidden}, vocabulary {vocab}, context {context}",
        layers.len()
    );
    println!("plan");
    println!("{}", Plan::lower(model, assignment));
}
