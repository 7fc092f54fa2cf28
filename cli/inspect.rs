//! `packlight inspect`: what a bundle or a checkpoint holds.

use anyhow::Context as _;
use indicatif::HumanBytes;
use packlight_convert::{Checkpoint, Conversion};
use packlight_formats::manifest::packlight::{About, PACKLIGHT};
use packlight_formats::manifest::tensor_cache::{NDARRAY_CACHE, TENSOR_CACHE};
use packlight_formats::manifest::{Names, Packlight, Requires, Span};
use packlight_formats::model::Model;
use packlight_formats::quant::{Assignment, Codes, Scheme};
use packlight_runner::bundle::{Bundle, Trust};
use packlight_runner::plan::Plan;
use serde_json::json;

use crate::args::InspectArgs;
use crate::place::{self, Place};

pub(crate) fn run(args: &InspectArgs) -> anyhow::Result<bool> {
    let distant = place::address(&args.path)?.is_some();
    let manifests = [PACKLIGHT, TENSOR_CACHE, NDARRAY_CACHE];
    let is_bundle = manifests.iter().any(|manifest| args.path.join(manifest).is_file());
    if distant || is_bundle { bundle(args) } else { checkpoint(args) }?;
    Ok(true)
}

fn bundle(args: &InspectArgs) -> anyhow::Result<()> {
    let place = Place::open(&args.path, &args.cache)?;
    let bundle = pollster::block_on(Bundle::open(place, Trust::Nothing))
        .with_context(|| format!("`{}` cannot be inspected", args.path.display()))?;
    let manifest = bundle.manifest();
    let about = manifest.and_then(|manifest| manifest.about.as_ref());
    if args.json {
        let mut report = json!({ "sha256": bundle.sha256() });
        if let Some(manifest) = manifest {
            report["manifest"] = serde_json::to_value(manifest)?;
        }
        if about.is_none() {
            report["scheme"] = bundle.assignment().usual().name.into();
            report["model"] = serde_json::to_value(bundle.model())?;
            report["notes"] = bundle.notes().into();
        }
        println!("{report}");
        return Ok(());
    }
    println!("bundle      sha256 {}", bundle.sha256());
    if let Some(Packlight { generator, .. }) = manifest {
        println!("written by  {} {}", generator.name, generator.version);
    }
    match about {
        Some(About { scheme, codes, source, .. }) => {
            println!("scheme      {scheme}, codes {codes}");
            println!("source      {} tensors, {}", source.tensors, HumanBytes(source.bytes));
        }
        None => println!("scheme      {}", bundle.assignment().usual().name),
    }
    let requires = Requires::of(bundle.model(), bundle.assignment());
    match manifest {
        Some(manifest) => print_files(manifest, requires.weight_bytes),
        None => println!("weights     {}", HumanBytes(requires.weight_bytes)),
    }
    print_requires(about.map_or(&requires, |about| &about.requires));
    for note in bundle.notes() {
        println!("note        {note}");
    }
    print_model(bundle.model(), bundle.assignment());
    Ok(())
}

fn print_files(Packlight { files, names, max_file_bytes, .. }: &Packlight, weight_bytes: u64) {
    println!("weights     {} in {} files", HumanBytes(weight_bytes), files.len());
    if let Some(cap) = max_file_bytes {
        let parts = files.iter().filter(|file| file.holds.as_ref().is_some_and(Span::is_part));
        println!("cut         to {}, {} files are parts", HumanBytes(*cap), parts.count());
    }
    if *names == Names::Hashed {
        println!("names       by content");
    }
}

fn print_requires(requires: &Requires) {
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
