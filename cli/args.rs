//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use packlight_convert::OverrideRule;
use packlight_formats::manifest::Names;
use packlight_formats::quant::codes::CODES;
use packlight_formats::quant::{Codes, SCHEMES, Scheme};
use packlight_pack::{Cut, HOSTS, Host};

/// Turn a Hugging Face checkpoint into a 4-bit bundle that a browser can load, and prove that it still talks.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 110)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Convert(ConvertArgs),
    Pack(PackArgs),
    Verify(VerifyArgs),
    Run(RunArgs),
    Inspect(InspectArgs),
    Devices(DevicesArgs),
    Demo(DemoArgs),
}

/// Where to run.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum DeviceChoice {
    /// A GPU where there is one, else the CPU reference.
    Auto,
    /// A GPU, or an error.
    Gpu,
    /// The CPU reference.
    Cpu,
}

/// Where ties go.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum RoundingChoice {
    Even,
    Away,
}

/// What kernels may rely on.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum CapsChoice {
    /// Whatever the adapter offers.
    Auto,
    /// Only what WebGPU guarantees everywhere.
    None,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
/// Convert a checkpoint into a bundle.
#[derive(Debug, clap::Args)]
pub(crate) struct ConvertArgs {
    /// Folder with config.json and *.safetensors.
    pub(crate) checkpoint: PathBuf,
    /// Folder to write the bundle to; must be empty or not exist, or hold what a stopped conversion left.
    #[arg(short, long, required_unless_present = "dry_run")]
    pub(crate) output: Option<PathBuf>,
    /// Quantisation scheme.
    #[arg(long, default_value = Scheme::DEFAULT.name, value_parser = scheme_names())]
    pub(crate) scheme: String,
    /// How codes are chosen. best: least squared error; mlc: exactly as MLC-LLM does; gptq: least squared error of what
    /// each matrix makes of a text.
    #[arg(long, default_value = Codes::DEFAULT.name, value_parser = codes_names())]
    pub(crate) codes: String,
    /// Where `--codes mlc` puts a tie: even as TVM does since 0.24 (default), away from zero as it did before.
    #[arg(long)]
    pub(crate) rounding: Option<RoundingChoice>,
    /// Text for `--codes gptq`, like what the model will read and write; default: some documentation and code.
    #[arg(long, value_name = "FILE")]
    pub(crate) calibration: Option<PathBuf>,
    /// Store weights whose bundle name matches REGEX under another scheme; may be given again, the last match wins.
    #[arg(long = "override", value_name = "REGEX=SCHEME", value_parser = parse_override)]
    pub(crate) overrides: Vec<OverrideRule>,
    /// A TOML file of [[override]] tables with `pattern` and `scheme`.
    #[arg(long, value_name = "FILE")]
    pub(crate) recipe: Option<PathBuf>,
    /// Conversation template for mlc-chat-config.json, by MLC's name; default: the one that equals the chat template.
    #[arg(long, value_name = "NAME")]
    pub(crate) conv_template: Option<String>,
    /// Size at which a weight shard is closed.
    #[arg(long, default_value = "32MiB", value_name = "SIZE", value_parser = parse_size)]
    pub(crate) shard_bytes: u64,
    #[command(flatten)]
    pub(crate) cut: CutArgs,
    /// Print what would be written, and write nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Replace a bundle that is already in the output folder, finished or not.
    #[arg(long)]
    pub(crate) force: bool,
    /// Convert NaN and infinite weights too, as the scheme does.
    #[arg(long)]
    pub(crate) allow_non_finite: bool,
    /// Threads for quantising; default: all.
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Print the result as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// How a bundle is cut into files.
#[derive(Debug, clap::Args)]
pub(crate) struct CutArgs {
    /// Cut the bundle to the limits of a host (docs/hosts.md has them).
    #[arg(long, value_name = "NAME", value_parser = host_names())]
    host: Option<String>,
    /// No file is larger; larger shards and tokenizers are stored in parts.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    max_file_bytes: Option<u64>,
    /// Name files as MLC does, or by their content, so that they can be cached for ever and replaced safely.
    #[arg(long, default_value = "plain")]
    names: NamesChoice,
}

impl CutArgs {
    pub(crate) fn cut(&self) -> Cut {
        let names = match self.names {
            NamesChoice::Plain => Names::Plain,
            NamesChoice::Hashed => Names::Hashed,
        };
        let host = self.host.as_deref().and_then(Host::find);
        Cut { max_file_bytes: self.max_file_bytes, names, host }
    }
}

/// How files are named.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum NamesChoice {
    Plain,
    Hashed,
}

/// Cut a bundle anew, for another host, without converting it again.
#[derive(Debug, clap::Args)]
pub(crate) struct PackArgs {
    /// Bundle folder: one of ours, or one that MLC-LLM converted.
    pub(crate) bundle: PathBuf,
    /// Folder to write the new bundle to; must be empty or not exist, or hold what a stopped run left.
    #[arg(short, long)]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) cut: CutArgs,
    /// Replace a bundle that is already in the output folder, finished or not.
    #[arg(long)]
    pub(crate) force: bool,
    /// Print the result as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Check every byte of a bundle against its manifests.
#[derive(Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    /// Bundle folder.
    pub(crate) bundle: PathBuf,
    /// Also check the MD5 of whole shards.
    #[arg(long)]
    pub(crate) all: bool,
    /// Do not mind files that no manifest names.
    #[arg(long)]
    pub(crate) allow_extra: bool,
    /// Print the result as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show what a bundle or a checkpoint holds: model, weights, plan.
#[derive(Debug, clap::Args)]
pub(crate) struct InspectArgs {
    /// Bundle or checkpoint folder.
    pub(crate) path: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Run a bundle on a prompt.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// Bundle folder.
    pub(crate) bundle: PathBuf,
    #[command(flatten)]
    pub(crate) prompt: PromptArgs,
    /// Tokens to generate; default: 256 (0 with --logits), or what fits the context.
    #[arg(short = 'n', value_name = "N")]
    pub(crate) count: Option<u32>,
    /// Where to run.
    #[arg(long, default_value = "auto")]
    pub(crate) device: DeviceChoice,
    /// What kernels may rely on.
    #[arg(long, default_value = "auto")]
    pub(crate) caps: CapsChoice,
    /// 0 takes the likeliest token always; higher is more varied.
    #[arg(long, default_value_t = 0.0, value_name = "T", allow_negative_numbers = true)]
    pub(crate) temperature: f32,
    /// Draw only from the likeliest tokens that together have this probability.
    #[arg(long, default_value_t = 1.0, value_name = "P")]
    pub(crate) top_p: f32,
    /// Equal seeds give equal answers.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) seed: u64,
    /// Write the logits of every prompt token, [tokens, vocab] f32, to a safetensors file.
    #[arg(long, value_name = "FILE")]
    pub(crate) logits: Option<PathBuf>,
    /// Do not compare hashes while loading.
    #[arg(long)]
    pub(crate) no_verify: bool,
    /// Print the result as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What to run on.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub(crate) struct PromptArgs {
    /// A message, put through the chat template.
    #[arg(short, long, value_name = "TEXT")]
    pub(crate) prompt: Option<String>,
    /// A text to continue, as it is.
    #[arg(long, value_name = "TEXT")]
    pub(crate) raw: Option<String>,
    /// Token ids, separated by commas; needs no tokenizer, and nothing but -n ends the generation.
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub(crate) tokens: Option<Vec<u32>>,
}

/// List the adapters that a bundle can run on, the preferred one first.
#[derive(Debug, clap::Args)]
pub(crate) struct DevicesArgs {
    /// Print a JSON array.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Convert, verify and run the small model that ships with the program.
#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Where to run.
    #[arg(long, default_value = "auto")]
    pub(crate) device: DeviceChoice,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

fn scheme_names() -> Vec<&'static str> {
    SCHEMES.iter().map(|scheme| scheme.name).collect()
}

fn host_names() -> Vec<&'static str> {
    HOSTS.iter().map(|host| host.name).collect()
}

fn codes_names() -> Vec<&'static str> {
    CODES.iter().map(|codes| codes.name).collect()
}

/// `lm_head=q0f16`: the scheme stands behind the last `=`.
fn parse_override(text: &str) -> Result<OverrideRule, String> {
    let (pattern, scheme) = text.rsplit_once('=').ok_or("write it as REGEX=SCHEME")?;
    Ok(OverrideRule { pattern: pattern.into(), scheme: scheme.into() })
}

/// `32MiB`, `25MB`, `1000`.
fn parse_size(text: &str) -> Result<u64, String> {
    match parse_size::parse_size(text) {
        Ok(0) => Err("must be more than 0".into()),
        Ok(size) => Ok(size),
        Err(error) => Err(format!("{error}; write a size like 32MiB, 25MB or 1000000")),
    }
}
