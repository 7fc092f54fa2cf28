//! `packlight inspect`: what a bundle or a checkpoint holds.

use indicatif::HumanBytes;
use packlight_convert::{Checkpoint, Conversion};
use packlight_formats::manifest::packlight::{About, PACKLIGHT};
use packlight_formats::manifest::{Names, Packlight, Span};
use packlight_formats::model::Model;
use packlight_formats::quant::{Assignment, Codes, Scheme};
use packlight_runner::bundle::{Bundle, Trust};
use packlight_runner::plan::Plan;
use packlight_runner::source::Folder;
use serde_json::json;

use crate::args::InspectArgs;

pub(crate) fn run(args: &InspectArgs) -> anyhow::Result<bool> {
    if args.path.join(PACKLIGHT).is_file() { bundle(args) } else { checkpoint(args) }?;
    Ok(true)
}

fn bundle(args: &InspectArgs) -> anyhow::Result<()> {
    let bundle = pollster::block_on(Bundle::open(Folder::new(&args.path), Trust::Nothing))?;
    let manifest = bundle.manifest();
    if args.json {
        println!("{}", json!({ "sha256": bundle.sha256(), "manifest": manifest }));
        return Ok(());
    }
    let Packlight { generator, files, names, max_file_bytes, .. } = manifest;
    let About { scheme, codes, source, requires, .. } = bundle.about();
    println!("bundle      sha256 {}", bundle.sha256());
    println!("written by  {} {}", generator.name, generator.version);
    println!("scheme      {scheme}, codes {codes}");
    println!("source      {} tensors, {}", source.tensors, HumanBytes(source.bytes));
    println!("weights     {} in {} files", HumanBytes(requires.weight_bytes), files.len());
    if let Some(cap) = max_file_bytes {
        let parts = files.iter().filter(|file| file.holds.as_ref().is_some_and(Span::is_part));
        println!("cut         to {}, {} files are parts", HumanBytes(*cap), parts.count());
    }
    if *names == Names::Hashed {
        println!("names       by content");
    }
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
