//! Every tensor of a bundle, bit for bit: the checkpoint's are made again as whoever made the bundle made them.

use std::path::Path;

use packlight_convert::{Compensated, Conversion, StreamOptions};
use packlight_formats::manifest::packlight::About;
use packlight_formats::quant::{Codes, Rounding, Storage};
use packlight_runner::bundle::Bundle;

use super::records::{Compared, compare};
use super::report::Check;
use crate::args::VerifyArgs;
use crate::calibration;
use crate::place::Place;
use crate::progress;
use crate::report::Hinted;

const PART: &str = "against";
const QUANTISED: &str = "quantised tensors";
/// Codes of another chooser differ in a tenth of their words or more, those of a damaged bundle in a few.
const DAMAGED: f64 = 0.01;

/// A way to choose codes.
#[derive(Clone, Copy)]
struct Way {
    codes: &'static Codes,
    rounding: Rounding,
}

/// Compares what is not quantised, and what is where its codes can be made again.
pub(super) fn check(
    args: &VerifyArgs,
    bundle: &Bundle<Place>,
    conversion: &mut Conversion<'_>,
) -> anyhow::Result<Vec<Check>> {
    let about = bundle.about();
    let rounding = about.and_then(|about| about.rounding).unwrap_or_default();
    let compensated = match about {
        Some(about) if args.recalibrate => {
            let text = args.calibration.as_deref();
            Some(recalibrate(text, about, conversion, options(rounding))?)
        }
        _ => None,
    };
    let compensated = compensated.as_ref();
    let plain = |storage: &Storage| matches!(storage, Storage::Plain(_));
    let Compared { records, problems, .. } =
        exactly(bundle, conversion, rounding, compensated, plain)?;
    let found = format!("{records} records equal what becomes of the checkpoint");
    let mut checks = vec![Check::of(PART, "unquantised tensors", found, problems)];
    if !conversion.quantises() {
        return Ok(checks);
    }
    checks.push(match known(bundle, compensated.is_some()) {
        Ok(way) => judge(way, way_of(way, bundle, conversion, compensated)?),
        Err(why) => match likeliest(bundle, conversion)? {
            Some((way, compared)) => judge(way, compared),
            None => Check::note(PART, QUANTISED, format!("not compared bit for bit: {why}")),
        },
    });
    Ok(checks)
}

fn judge(way: Way, Compared { records, problems, .. }: Compared) -> Check {
    let about = format!("{records} records equal what --codes {} makes", way.codes.name);
    Check::of(PART, QUANTISED, about, problems)
}

/// What is not finite is in the bundle, or not, by the choice of who made it.
fn options(rounding: Rounding) -> StreamOptions {
    StreamOptions { allow_non_finite: true, rounding }
}

/// How the bundle says its codes were chosen, or why they cannot be chosen so again.
fn known(bundle: &Bundle<Place>, calibrated: bool) -> Result<Way, String> {
    let Some((manifest, about)) = bundle.manifest().zip(bundle.about()) else {
        return Err("a plain MLC bundle does not say how".into());
    };
    let name = &about.codes;
    let codes = Codes::find(name).ok_or(format!("--codes {name} is not known"))?;
    if manifest.generator.version != env!("CARGO_PKG_VERSION") {
        return Err(format!("another version, {}, has chosen them", manifest.generator.version));
    }
    if codes.calibrates && !calibrated {
        return Err(format!("--codes {name} depends on a text (--recalibrate makes them again)"));
    }
    Ok(Way { codes, rounding: about.rounding.unwrap_or_default() })
}

/// The way that comes nearest, if it comes so near that what differs must be damage.
fn likeliest(
    bundle: &Bundle<Place>,
    conversion: &mut Conversion<'_>,
) -> anyhow::Result<Option<(Way, Compared)>> {
    let mut best: Option<(Way, Compared)> = None;
    for (name, rounding) in
        [("best", Rounding::Even), ("mlc", Rounding::Even), ("mlc", Rounding::Away)]
    {
        let Some(codes) = Codes::find(name) else { continue };
        let way = Way { codes, rounding };
        let compared = way_of(way, bundle, conversion, None)?;
        if best.as_ref().is_none_or(|(_, best)| compared.differing < best.differing) {
            best = Some((way, compared));
        }
    }
    Ok(best.filter(|(_, best)| best.differing as f64 <= DAMAGED * best.elements as f64))
}

fn way_of(
    way: Way,
    bundle: &Bundle<Place>,
    conversion: &mut Conversion<'_>,
    compensated: Option<&Compensated>,
) -> anyhow::Result<Compared> {
    conversion.codes = way.codes;
    let grouped = |storage: &Storage| matches!(storage, Storage::Grouped { .. });
    exactly(bundle, conversion, way.rounding, compensated, grouped)
}

fn exactly(
    bundle: &Bundle<Place>,
    conversion: &Conversion<'_>,
    rounding: Rounding,
    compensated: Option<&Compensated>,
    wanted: fn(&Storage) -> bool,
) -> anyhow::Result<Compared> {
    let bar = progress::bytes(conversion.source_bytes(), "comparing");
    let options = options(rounding);
    let compared =
        compare(bundle, conversion, options, compensated, wanted, |bytes| bar.inc(bytes))?;
    bar.finish_and_clear();
    Ok(compared)
}

fn recalibrate(
    text: Option<&Path>,
    about: &About,
    conversion: &Conversion<'_>,
    options: StreamOptions,
) -> anyhow::Result<Compensated> {
    let Some(codes) = Codes::find(&about.codes).filter(|codes| codes.calibrates) else {
        let message = format!("--recalibrate does not apply to --codes {}", about.codes);
        return Err(Hinted::new(message, "leave it out").into());
    };
    let words = calibration::text(text, codes)?.unwrap_or_default();
    let windows = calibration::cut(conversion, &words)?;
    if about.calibration_sha256.as_ref() != Some(&windows.sha256) {
        let message = "the bundle was calibrated with another text";
        return Err(Hinted::new(message, "give it with --calibration FILE").into());
    }
    // There is no bundle's folder for the codes to wait in.
    calibration::run(conversion, &windows, options, &std::env::temp_dir())
}
