//! The command line.

mod hosting;

use std::path::PathBuf;

use crate::bench::BenchArgs;
use clap::{Parser, Subcommand};
pub(crate) use hosting::{CacheArgs, CacheFolder, ProbeArgs, PublishArgs, ServeArgs};
use packlight_convert::OverrideRule;
use packlight_formats::manifest::Names;
use packlight_formats::quant::codes::CODES;
use packlight_formats::quant::{Codes, SCHEMES, Scheme};
use packlight_pack::{Cut, HOSTS, Host};
use packlight_runner::gpu::Caps;
use packlight_runner::text::{Sampling, SamplingError};

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
    Publish(PublishArgs),
    Serve(ServeArgs),
    Probe(ProbeArgs),
    Cache(CacheArgs),
    Devices(DevicesArgs),
    Bench(BenchArgs),
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

#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
/// Convert a checkpoint into a bundle.
#[derive(Debug, clap::Args)]
pub(crate) struct ConvertArgs {
    /// Folder with config.json and *.safetensors, or hf://owner/name[@revision].
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
    /// Go on without a key of config.json that no architecture knows, as in rope_scaling.KEY; may be given again. The
    /// bundle says so, and is wrong where the key changes what the model computes.
    #[arg(long = "ignore-config-key", value_name = "KEY")]
    pub(crate) ignored_config_keys: Vec<String>,
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
    /// Replace a bundle that is already in the output folder, finished or not. Other files stay as they are.
    #[arg(long)]
    pub(crate) force: bool,
    /// Convert NaN and infinite weights too, as the scheme does.
    #[arg(long)]
    pub(crate) allow_non_finite: bool,
    #[command(flatten)]
    pub(crate) cache: CacheFolder,
    /// Threads for quantising; default: as many as the machine has.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
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
    /// Replace a bundle that is already in the output folder, finished or not. Other files stay as they are.
    #[arg(long)]
    pub(crate) force: bool,
    /// Print the result as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
/// Check a bundle: its bytes against its manifests; with --run, what a device computes from it; with --against, what
/// quantisation has cost.
#[derive(Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    /// Bundle folder, or its URL: https://host/folder/ or hf://owner/name[@revision].
    pub(crate) bundle: PathBuf,
    #[command(flatten)]
    pub(crate) cache: CacheFolder,
    /// Also run it, and compare the device with the CPU reference.
    #[arg(long)]
    pub(crate) run: bool,
    /// Also compare it with the checkpoint that it was made from: description, every tensor, and predictions.
    #[arg(long, value_name = "CKPT")]
    pub(crate) against: Option<PathBuf>,
    /// Where to run.
    #[arg(long, default_value = "auto")]
    pub(crate) device: DeviceChoice,
    #[command(flatten)]
    pub(crate) caps: CapsArgs,
    /// Text to predict, which the model was not trained on; default: some documentation.
    #[arg(long, value_name = "FILE")]
    pub(crate) text: Option<PathBuf>,
    /// Windows of the text that --against compares predictions on.
    #[arg(long, default_value_t = 24, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) windows: u32,
    /// Tokens of such a window, as far as the model's context allows.
    #[arg(long, default_value_t = 512, value_name = "L", value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) context: u32,
    /// With --run: compare every step of one call, and name the first that differs.
    #[arg(long, requires = "run")]
    pub(crate) trace_steps: bool,
    /// With --against: make the codes of a gptq bundle again and compare them bit for bit. Takes as long as converting,
    /// and the mathematical library of the machine that converted.
    #[arg(long, requires = "against")]
    pub(crate) recalibrate: bool,
    /// Text that the bundle was calibrated with, where it is not the one that ships.
    #[arg(long, value_name = "FILE", requires = "recalibrate")]
    pub(crate) calibration: Option<PathBuf>,
    /// Write the report to a file, as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
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
    /// Bundle or checkpoint folder, or a bundle's URL.
    pub(crate) path: PathBuf,
    #[command(flatten)]
    pub(crate) cache: CacheFolder,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Run a bundle: answer a prompt, continue a text, or hold a conversation.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// Bundle folder, ours or MLC-LLM's, or its URL: https://host/folder/ or hf://owner/name[@revision].
    pub(crate) bundle: PathBuf,
    #[command(flatten)]
    pub(crate) cache: CacheFolder,
    #[command(flatten)]
    pub(crate) prompt: PromptArgs,
    /// A system message, where the chat template takes one.
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["raw", "tokens"])]
    pub(crate) system: Option<String>,
    /// Tokens to generate at most, for each answer; default: 256 (0 with --logits), with --chat what fits the context.
    #[arg(short = 'n', value_name = "N")]
    pub(crate) count: Option<u32>,
    /// Positions to make room for; default: what prompt and answer need, with --chat 4096 or the model's own limit.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) context: Option<u32>,
    /// Where to run.
    #[arg(long, default_value = "auto")]
    pub(crate) device: DeviceChoice,
    #[command(flatten)]
    pub(crate) caps: CapsArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// End an answer before this text; may be given again.
    #[arg(long, value_name = "TEXT", conflicts_with = "tokens")]
    pub(crate) stop: Vec<String>,
    /// Write the logits of every prompt token, [tokens, vocab] f32, to a safetensors file.
    #[arg(long, value_name = "FILE", conflicts_with = "chat")]
    pub(crate) logits: Option<PathBuf>,
    /// Do not compare hashes while loading.
    #[arg(long)]
    pub(crate) no_verify: bool,
    /// Print the result as one JSON object, with --chat one for each answer.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What to run on.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub(crate) struct PromptArgs {
    /// A message, put through the chat template; - reads it from standard input.
    #[arg(short, long, value_name = "TEXT")]
    pub(crate) prompt: Option<String>,
    /// A conversation: every line of standard input is a message. Ctrl-C ends a reply, Ctrl-D the conversation.
    #[arg(long)]
    pub(crate) chat: bool,
    /// A text to continue, as it is; - reads it from standard input.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) raw: Option<String>,
    /// Token ids, separated by commas; needs no tokenizer, and nothing but -n ends the generation.
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub(crate) tokens: Option<Vec<u32>>,
}

/// How tokens are chosen. The order is that of transformers: penalty, temperature, top-k, top-p, min-p.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// 0 takes the likeliest token always; higher is more varied.
    #[arg(long, default_value_t = 0.0, value_name = "T", allow_negative_numbers = true)]
    pub(crate) temperature: f32,
    /// Draw only from the K likeliest tokens; 0: from all.
    #[arg(long, default_value_t = 0, value_name = "K")]
    pub(crate) top_k: u32,
    /// Draw only from the likeliest tokens that together have this probability.
    #[arg(long, default_value_t = 1.0, value_name = "P", allow_negative_numbers = true)]
    pub(crate) top_p: f32,
    /// Draw only from tokens at least this many times as likely as the likeliest.
    #[arg(long, default_value_t = 0.0, value_name = "P", allow_negative_numbers = true)]
    pub(crate) min_p: f32,
    /// Make tokens of the prompt and of the answer so far less likely; 1: no.
    #[arg(long, default_value_t = 1.0, value_name = "X", allow_negative_numbers = true)]
    pub(crate) repetition_penalty: f32,
    /// Equal seeds give equal answers.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) seed: u64,
}

impl SamplingArgs {
    /// The settings, if they have a meaning.
    pub(crate) fn settings(&self) -> Result<Sampling, SamplingError> {
        let Self { temperature, top_k, top_p, min_p, repetition_penalty, seed } = *self;
        let sampling = Sampling { temperature, top_k, top_p, min_p, repetition_penalty, seed };
        sampling.validate()?;
        Ok(sampling)
    }
}

/// What kernels may rely on.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct CapsArgs {
    /// What kernels may rely on. auto: the adapter's limits; none: only what WebGPU guarantees. Add +f16, +subgroups
    /// or +coop (cooperative matrices, with both of them) to use those, as in `none,+f16`; -software gives an adapter
    /// that runs on the processor the kernels of GPUs.
    #[arg(
        long,
        default_value = "auto",
        value_name = "LIST",
        value_parser = str::parse::<Caps>,
        allow_hyphen_values = true
    )]
    pub(crate) caps: Caps,
}

/// List the adapters that a bundle can run on, the preferred one first, and the kernels that each would be given.
#[derive(Debug, clap::Args)]
pub(crate) struct DevicesArgs {
    #[command(flatten)]
    pub(crate) caps: CapsArgs,
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
    match parse_limit(text)? {
        0 => Err("must be more than 0".into()),
        size => Ok(size),
    }
}

/// A size that may be 0.
fn parse_limit(text: &str) -> Result<u64, String> {
    parse_size::parse_size(text)
        .map_err(|error| format!("{error}; write a size like 32MiB, 25MB or 1000000"))
}
