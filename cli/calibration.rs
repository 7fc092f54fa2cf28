//! `--codes gptq`: the runner runs a text through the model while the converter makes its weights.

use std::borrow::Cow;
use std::path::Path;

use packlight_convert::{Compensated, Compensator, Conversion, ConvertError, StreamOptions};
use packlight_formats::digest::sha256;
use packlight_formats::quant::Codes;
use packlight_runner::plan::Plan;
use packlight_runner::reference::{Calibration, ReferenceError};
use packlight_runner::text::{SpecialTokens, Tokenizer};
use packlight_runner::verify::windows;

use crate::progress;
use crate::report::Hinted;

/// What is used where no text is given.
const TEXT: &str = include_str!("calibration.txt");
/// Tokens that see each other.
const WINDOW: usize = 512;
/// More text than this adds time and next to nothing else.
const MAX_WINDOWS: usize = 128;

/// A text as the model will see it.
pub(crate) struct Windows {
    tokens: Vec<Vec<u32>>,
    /// Of the text.
    pub(crate) sha256: String,
}

/// The text to calibrate with, where the chooser needs some.
pub(crate) fn text(
    file: Option<&Path>,
    codes: &Codes,
) -> anyhow::Result<Option<Cow<'static, str>>> {
    match file {
        Some(_) if !codes.calibrates => Err(Hinted::new(
            format!("--calibration does not apply to --codes {}", codes.name),
            "leave it out, or use --codes gptq",
        )
        .into()),
        Some(file) => {
            let text = String::from_utf8(read(file)?).map_err(|error| {
                let message = format!("`{}` is not UTF-8 text: {error}", file.display());
                Hinted::new(message, "calibration takes plain text")
            })?;
            Ok(Some(text.into()))
        }
        None => Ok(codes.calibrates.then_some(TEXT.into())),
    }
}

fn read(file: &Path) -> Result<Vec<u8>, Hinted> {
    let message = |error| format!("the calibration text cannot be read: {error}");
    fs_err::read(file)
        .map_err(|error| Hinted::new(message(error), "--calibration takes a file of plain text"))
}

/// Runs the text through the model; the codes wait in a nameless file in `folder`.
pub(crate) fn run(
    conversion: &Conversion<'_>,
    windows: &Windows,
    options: StreamOptions,
    folder: &Path,
) -> anyhow::Result<Compensated> {
    let plan = Plan::lower(&conversion.model, &conversion.assignment);
    let calibration = Calibration::new(plan, windows.tokens.clone())?;
    let mut compensator = Compensator::new(conversion, options, folder)?;
    let bar = progress::work(calibration.work(), "calibrating");
    calibration.run::<Failure>(
        |weight, inputs| Ok(compensator.records(&weight.name, inputs)?),
        |work| bar.inc(work),
    )?;
    bar.finish_and_clear();
    Ok(compensator.finish())
}

/// Either side of the joint may fail.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Convert(#[from] ConvertError),
    #[error(transparent)]
    Reference(#[from] ReferenceError),
}

/// The text's tokens in windows as long as the model can see, each begun as the model expects a text to begin.
pub(crate) fn cut(conversion: &Conversion<'_>, text: &str) -> anyhow::Result<Windows> {
    let (checkpoint, context) = (conversion.checkpoint(), conversion.model.context as usize);
    let path = checkpoint.folder().join("tokenizer.json");
    if !path.is_file() {
        let message = "the checkpoint has no tokenizer.json, so no text can be run through it";
        return Err(
            Hinted::new(message, "add the file, or use --codes best, which needs no text").into()
        );
    }
    let tokenizer = Tokenizer::from_bytes(fs_err::read(path)?)?;
    let settings = checkpoint.json("tokenizer_config.json")?.unwrap_or_default();
    let beginning = tokenizer.beginning(&SpecialTokens::from_config(&settings))?;
    let tokens = tokenizer.encode(text)?;
    let length = WINDOW.min(context);
    let windows = windows(&tokens, &beginning, length, MAX_WINDOWS);
    let used: usize = windows.iter().map(|window| window.len() - beginning.len()).sum();
    if windows.len() == MAX_WINDOWS && used < tokens.len() {
        eprintln!("note: calibrating with the first {used} of {} tokens", tokens.len());
    }
    if windows.is_empty() {
        let hint = "give a text of some 10,000 words, like what the model will read and write";
        return Err(Hinted::new("the calibration text is empty", hint).into());
    }
    Ok(Windows { tokens: windows, sha256: sha256(text.as_bytes()) })
}
