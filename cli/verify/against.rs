//! Part 3: what did quantisation cost? And is the bundle made of this checkpoint at all?

use std::path::Path;
use std::time::Instant;

use packlight_convert::{Checkpoint, Conversion, Original, OverrideRule};
use packlight_formats::manifest::packlight::About;
use packlight_formats::quant::Codes;
use packlight_runner::bundle::Bundle;
use packlight_runner::packed::PackedWeights;
use packlight_runner::plan::{Plan, PlanWeight};
use packlight_runner::reference::Weights;
use packlight_runner::verify::{
    Bound, Continuation, Side, Statistics, WeightError, cost, weight_error,
};
use serde::Serialize;

use super::description::differences;
use super::report::{Check, print_figures, table};
use super::tensors;
use super::words::Words;
use crate::args::VerifyArgs;
use crate::place::Place;
use crate::progress;

const PART: &str = "against";
/// A bundle whose perplexity is higher than the checkpoint's by more than this factor deserves a look.
const PERPLEXITY_RATIO: f64 = 1.3;

/// What was compared, and what came of it.
#[derive(Debug, Serialize)]
pub(crate) struct Against {
    text: String,
    windows: usize,
    context: usize,
    /// The bundle (`Q`) against the checkpoint (`base`).
    figures: Statistics,
    /// Mean negative log likelihoods of the checkpoint and of the bundle.
    nll: [f64; 2],
    /// Tokens after each prompt that the checkpoint would have begun with as well.
    greedy_prefix: Vec<usize>,
    greedy_tokens: Vec<usize>,
    /// In half steps of MLC's rule.
    bound: Bound,
    weights: Vec<WeightError>,
    tensors_s: f64,
    predictions_s: f64,
}

/// Rows of a checkpoint, for a reference that knows of none.
#[derive(Debug)]
struct FromCheckpoint<'a>(Original<'a>);

impl Weights for FromCheckpoint<'_> {
    fn row(&self, weight: &PlanWeight, n: usize, out: &mut [f32]) {
        self.0.row(&weight.name, n as u64, out);
    }

    fn release(&mut self, weight: &PlanWeight) {
        self.0.release(&weight.name);
    }
}

/// Runs part 3. `continuations` are what the bundle says after some prompts.
pub(crate) fn check(
    args: &VerifyArgs,
    folder: &Path,
    bundle: &Bundle<Place>,
    words: &Words,
    continuations: &[Continuation],
) -> anyhow::Result<(Vec<Check>, Option<Against>)> {
    let ignored = bundle.about().map_or(&[][..], |about| &about.source.ignored_config_keys);
    let checkpoint = Checkpoint::open_ignoring(folder, ignored)?;
    let codes = bundle.about().and_then(|about| Codes::find(&about.codes));
    let rules = bundle.about().map(rules).unwrap_or_default();
    let scheme = bundle.assignment().usual();
    let mut conversion =
        Conversion::plan(&checkpoint, scheme, &rules, codes.unwrap_or(Codes::DEFAULT))?;
    let start = Instant::now();
    let mut checks = Vec::new();
    checks.extend(bundle.about().map(|about| source(about, &conversion)));
    checks.push(Check::of(
        PART,
        "description",
        "every field, from config.json",
        differences(bundle.model(), &conversion.model)?,
    ));
    checks.extend(tensors::check(args, bundle, &mut conversion)?);

    let bar = progress::bytes(bundle.weight_bytes(), "loading");
    let packed = pollster::block_on(Side::load(bundle, |bytes| bar.inc(bytes)))?;
    bar.finish_and_clear();
    let original = FromCheckpoint(Original::new(&checkpoint, &conversion.model));
    let bound = match codes {
        Some(codes) if !codes.calibrates => Bound::INDEPENDENT,
        _ => Bound::COMPENSATED,
    };
    let weights = errors(&packed, &original, &conversion);
    if !weights.is_empty() {
        checks.push(bounds(&weights, bound));
    }
    let tensors_s = start.elapsed().as_secs_f64();

    let start = Instant::now();
    let length = args.context.min(bundle.model().context).min(conversion.model.context) as usize;
    let windows = words.windows(length, args.windows as usize);
    let plan = Plan::lower(&conversion.model, &conversion.assignment);
    let (base, count) = (Side { plan, weights: original }, windows.len());
    let bar = progress::work(0, "predicting");
    let cost = cost(base, packed, &windows, continuations, |done, of| {
        bar.set_length(of);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let cost = match cost {
        Ok(cost) => cost,
        Err(error) => {
            checks.push(Check::new(PART, "predictions", false, error.to_string()));
            return Ok((checks, None));
        }
    };
    checks.extend(predictions(&cost.text, words));
    let against = Against {
        text: words.about.clone(),
        windows: count,
        context: length,
        nll: cost.text.mean_nll(),
        figures: cost.text,
        greedy_prefix: cost.greedy_prefix,
        greedy_tokens: continuations.iter().map(|said| said.tokens.len()).collect(),
        bound,
        weights,
        tensors_s,
        predictions_s: start.elapsed().as_secs_f64(),
    };
    Ok((checks, Some(against)))
}

/// The overrides of a conversion that made the bundle.
fn rules(about: &About) -> Vec<OverrideRule> {
    let rule = |o: &packlight_formats::manifest::packlight::Override| OverrideRule {
        pattern: o.pattern.clone(),
        scheme: o.scheme.clone(),
    };
    about.overrides.iter().map(rule).collect()
}

fn source(about: &About, conversion: &Conversion<'_>) -> Check {
    if about.source == conversion.provenance() {
        return Check::new(PART, "source", true, "the files that the bundle says it was made from");
    }
    let config = about.source.config_sha256 == conversion.provenance().config_sha256;
    let found = if config {
        "config.json is the one that the bundle was made from, the weight files are not"
    } else {
        "the bundle was made from another config.json"
    };
    Check::note(PART, "source", found)
}

/// Of every quantised matrix that the checkpoint has in that shape: others were complained of.
fn errors(
    packed: &Side<PackedWeights>,
    original: &FromCheckpoint<'_>,
    conversion: &Conversion<'_>,
) -> Vec<WeightError> {
    let common = |weight: &&PlanWeight| {
        conversion.weights.iter().any(|planned| {
            let shape = [planned.weight.rows(), planned.weight.columns()];
            planned.weight.name == weight.name
                && shape == [u64::from(weight.rows), u64::from(weight.columns)]
        })
    };
    let errors = packed.plan.weights.iter().filter(common).filter_map(|weight| {
        let error = weight_error(weight, original, &packed.weights);
        // It is read again, but not before all others.
        original.0.release(&weight.name);
        error
    });
    errors.collect()
}

fn bounds(weights: &[WeightError], bound: Bound) -> Check {
    let beyond = |weight: &WeightError| {
        weight.beyond(bound).map(|what| format!("`{}`: {what}", weight.weight))
    };
    let problems = weights.iter().filter_map(beyond).collect();
    let worst = weights.iter().map(|weight| weight.relative).fold(0.0, f64::max);
    let about = format!("{} matrices, off by {:.2} % at most", weights.len(), 100.0 * worst);
    Check::of(PART, "errors within bounds", about, problems)
}

fn predictions(text: &Statistics, words: &Words) -> Vec<Check> {
    let finite = text.is_finite();
    let about = format!(
        "mean KLD {:.4}, same top token {:.2} %, perplexity times {:.4}, {} positions",
        text.mean_kld(),
        100.0 * text.same_top(),
        text.perplexity_ratio(),
        text.positions()
    );
    let mut checks = vec![Check::new(PART, "predictions are numbers", finite, about)];
    if words.text.is_some() && text.perplexity_ratio() > PERPLEXITY_RATIO {
        let about =
            format!("higher by more than {PERPLEXITY_RATIO} times: this bundle has lost a lot");
        checks.push(Check::note(PART, "perplexity", about));
    }
    checks
}

impl Against {
    pub(crate) fn print(&self) {
        println!("\nthe bundle (Q) against the checkpoint (base)");
        println!("text       {}: {} windows of {}", self.text, self.windows, self.context);
        print_figures(&self.figures);
        let prefixes = self.greedy_prefix.iter().zip(&self.greedy_tokens);
        let prefixes: Vec<String> = prefixes.map(|(same, of)| format!("{same} of {of}")).collect();
        println!("greedy prefix: {} tokens", prefixes.join(", "));
        let mut worst: Vec<&WeightError> = self.weights.iter().collect();
        worst.sort_by(|a, b| b.relative.total_cmp(&a.relative));
        let mut table = table();
        table.set_header(["furthest off", "error", "matrix", "group", "value"]);
        for WeightError { weight, relative, matrix, group, value } in worst.into_iter().take(3) {
            table.add_row([
                weight.clone(),
                format!("{:.2} %", 100.0 * relative),
                format!("{matrix:.2}"),
                format!("{:.2}", group.error),
                format!("{:.2}", value.error),
            ]);
        }
        println!("{}", table.trim_fmt());
        println!("tensors {:.1} s, predictions {:.1} s", self.tensors_s, self.predictions_s);
    }
}
