//! What the model is run on: a text and some prompts in its tokens, or noise where there is no tokenizer.

use std::borrow::Cow;
use std::path::Path;

use packlight_formats::digest::sha256;
use packlight_runner::bundle::Bundle;
use packlight_runner::plan::Plan;
use packlight_runner::text::Text;
use packlight_runner::verify::{Material, noise, windows};

use crate::place::Place;
use crate::report::Hinted;

/// What is used where no text is given. No text that ships for calibration is in it.
const TEXT: &str = include_str!("../evaluation.txt");
const PROMPTS: [&str; 3] = ["Hi", "What is the capital of France?", "Write a haiku."];
/// Tokens of a prompt of noise.
const NOISE_PROMPT: usize = 12;

/// A text and prompts.
pub(crate) struct Words {
    /// Decodes what is answered; nothing where tokens are noise.
    pub(crate) text: Option<Text>,
    /// What they are, for the report.
    pub(crate) about: String,
    /// Of the text.
    pub(crate) sha256: Option<String>,
    tokens: Vec<u32>,
    beginning: Vec<u32>,
    prompts: Vec<Vec<u32>>,
}

impl Words {
    /// Tokens of a text, or of the one that ships, by the bundle's tokenizer; else at least `count` of noise.
    pub(crate) fn of(
        bundle: &Bundle<Place>,
        file: Option<&Path>,
        count: usize,
    ) -> anyhow::Result<Self> {
        let text = pollster::block_on(Text::of(bundle)).unwrap_or_else(|error| {
            eprintln!("warning: {error}; pseudo-random token ids are used instead of text");
            None
        });
        let Some(text) = text else {
            if file.is_some() {
                let hint = "leave out --text: token ids without sense are used then";
                return Err(Hinted::new("the bundle has no tokenizer for --text", hint).into());
            }
            let vocab = bundle.model().vocab;
            let prompt = |seed| noise(vocab, NOISE_PROMPT, seed);
            return Ok(Self {
                text: None,
                about: "pseudo-random token ids, as the bundle has no tokenizer".into(),
                sha256: None,
                tokens: noise(vocab, count, 0),
                beginning: Vec::new(),
                prompts: (1..=PROMPTS.len() as u64).map(prompt).collect(),
            });
        };
        let words = match file {
            Some(file) => Cow::Owned(read(file)?),
            None => TEXT.into(),
        };
        let prompt = |message| text.prompt(message).or_else(|_| text.raw(message));
        let tokens = text.tokenizer().encode(&words)?;
        let name = file.map_or("the text that ships".into(), |file| file.display().to_string());
        if tokens.len() < 2 {
            let hint = "give a text of some 10,000 words";
            return Err(Hinted::new(format!("{name} has nothing to predict"), hint).into());
        }
        Ok(Self {
            about: format!("{name}, {} tokens", tokens.len()),
            sha256: Some(sha256(words.as_bytes())),
            tokens,
            beginning: text.beginning()?,
            prompts: PROMPTS.into_iter().map(prompt).collect::<Result<_, _>>()?,
            text: Some(text),
        })
    }

    /// For the comparison of devices.
    pub(crate) fn material(&self, plan: &Plan, context: u32) -> Material {
        Material::new(plan, context, &self.tokens, &self.beginning, self.prompts.clone())
    }

    /// For the comparison of models.
    pub(crate) fn windows(&self, length: usize, count: usize) -> Vec<Vec<u32>> {
        windows(&self.tokens, &self.beginning, length, count)
    }

    /// How many prompts there are, long ones aside.
    pub(crate) fn prompts(&self) -> usize {
        self.prompts.len()
    }

    /// Tokens as text, where there is a tokenizer.
    pub(crate) fn say(&self, tokens: &[u32]) -> Option<String> {
        let text = self.text.as_ref()?;
        let end = tokens.iter().position(|&token| text.stops().is_stop(token));
        text.tokenizer().decode(&tokens[..end.unwrap_or(tokens.len())]).ok()
    }
}

fn read(file: &Path) -> Result<String, Hinted> {
    let refuse = |why: String| Hinted::new(format!("--text: {why}"), "give a file of plain text");
    let bytes = fs_err::read(file).map_err(|error| refuse(error.to_string()))?;
    String::from_utf8(bytes)
        .map_err(|error| refuse(format!("`{}` is not UTF-8 text: {error}", file.display())))
}
