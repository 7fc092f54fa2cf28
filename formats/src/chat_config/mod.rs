//! `mlc-chat-config.json`: what WebLLM reads before any weight.
//!
//! The file is that of MLC-LLM's `interface/gen_config.py`, byte for byte, with one deliberate difference: exactly one of
//! `context_window_size` and `sliding_window_size` is set, because WebLLM refuses the file otherwise.

mod choice;
mod conversation;
mod describe;
mod model_config;
mod presets;
mod settings;
mod tokenizer_info;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use choice::{Checkpoint, Choice, Difference, choose, named};
pub use conversation::{Conversation, Message, Role, Texts};
pub use presets::{PRESETS, Preset, by_name};
pub use tokenizer_info::{Postproc, TokenizerInfo, active_vocab_size, token_id};

use crate::python_json;
use settings::Settings;

/// The file's name.
pub const CHAT_CONFIG: &str = "mlc-chat-config.json";

/// Tokenizer files that belong in a bundle, in the order in which `tokenizer_files` lists them.
pub const TOKENIZER_FILES: [&str; 6] = [
    "tokenizer.model",
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "tokenizer_config.json",
];

/// Why a chat configuration could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChatConfigError {
    /// `config.json` holds no object.
    #[error("config.json is not a JSON object")]
    NotAnObject,
    /// A setting that has no default.
    #[error("config.json has no `{key}`{}", for_model(.model_type))]
    MissingKey {
        /// The key.
        key: &'static str,
        /// The architecture that needs it; empty if that is what is missing.
        model_type: String,
    },
    /// A setting that should be a whole number.
    #[error("`{key}` of config.json is {value}, which is no usable count")]
    NotACount {
        /// The key.
        key: &'static str,
        /// What it holds.
        value: String,
    },
    /// A system message after the first message.
    #[error(
        "message {index} is a system message, but the template has a place for one at the front only"
    )]
    LateSystemMessage {
        /// Position among the messages after the front one.
        index: usize,
    },
    /// No preset has that name.
    #[error("no conversation template is called `{name}`; known are {}", known())]
    UnknownPreset {
        /// The name.
        name: String,
    },
    /// Two added tokens with one text.
    #[error("tokenizer.json adds the token `{token}` twice")]
    DuplicateAddedToken {
        /// Its text.
        token: String,
    },
    /// The file could not be written as JSON.
    #[error("mlc-chat-config.json cannot be written: {0}")]
    Json(#[from] serde_json::Error),
}

impl ChatConfigError {
    /// What the user can do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NotAnObject | Self::NotACount { .. } => {
                "config.json may be incomplete, changed by hand, or of another checkpoint: download it again"
            }
            Self::MissingKey { .. } => {
                "add the key to config.json with the value that the model was trained with"
            }
            Self::LateSystemMessage { .. } => "put what the system says into the first message",
            Self::UnknownPreset { .. } => {
                "without --conv-template the one is taken that writes what the chat template writes"
            }
            Self::DuplicateAddedToken { .. } => {
                "remove one of the two from `added_tokens`: nobody can say which id the text stands for"
            }
            Self::Json(_) => "numbers of config.json or of the tokenizer files may be out of range",
        }
    }
}

fn for_model(model_type: &str) -> String {
    if model_type.is_empty() { String::new() } else { format!(", which {model_type} needs") }
}

fn known() -> String {
    PRESETS.iter().map(|preset| format!("`{}`", preset.name)).collect::<Vec<_>>().join(", ")
}

/// What a chat configuration is made from.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// The checkpoint's `config.json`.
    pub config: &'a Value,
    /// Positions that the model has, as its description says.
    pub context: u32,
    /// Its `generation_config.json`.
    pub generation_config: Option<&'a Value>,
    /// Name of the quantisation scheme, such as `q4f16_1`.
    pub scheme: &'a str,
    /// Names of the bundle's tokenizer files, in any order; others are left out.
    pub tokenizer_files: &'a [&'a str],
    /// From [`TokenizerInfo::detect`].
    pub tokenizer_info: &'a TokenizerInfo,
    /// From [`choose`] or [`named`].
    pub conv_template: &'a Conversation,
    /// Tokens that a text can encode to, from [`active_vocab_size`]; `None` takes the model's `vocab_size`.
    pub active_vocab_size: Option<u64>,
}

/// The file, in the order of its keys.
#[derive(Serialize)]
struct Document<'a> {
    version: &'static str,
    model_type: &'a str,
    quantization: &'a str,
    model_config: Value,
    vocab_size: u64,
    context_window_size: Value,
    sliding_window_size: Value,
    prefill_chunk_size: u64,
    attention_sink_size: Value,
    tensor_parallel_shards: u32,
    pipeline_parallel_stages: u32,
    active_vocab_size: u64,
    temperature: Value,
    presence_penalty: Value,
    frequency_penalty: Value,
    repetition_penalty: Value,
    top_p: Value,
    tokenizer_files: Vec<&'a str>,
    tokenizer_info: &'a TokenizerInfo,
    conv_template: &'a Conversation,
    pad_token_id: Value,
    bos_token_id: Value,
    eos_token_id: Value,
    model_task: &'static str,
    embedding_metadata: Option<()>,
}

/// The text of `mlc-chat-config.json`.
///
/// # Errors
/// A setting that the architecture needs and `config.json` lacks or misspells.
pub fn to_json(inputs: &Inputs) -> Result<String, ChatConfigError> {
    let settings = Settings::new(inputs.config, inputs.context.into())?;
    let model = model_config::model_config(&settings)?;
    // gen_config.py, step 2: generation_config.json, then config.json, then the defaults of mlc_chat_config.py.
    let generation = |key: &str, default: Value| {
        let files = inputs.generation_config.into_iter().chain([inputs.config]);
        let mut values = files.filter_map(|file| file.get(key)).filter(|value| !value.is_null());
        values.next().cloned().unwrap_or(default)
    };
    let present = |name: &&str| inputs.tokenizer_files.contains(name);
    let document = Document {
        version: "0.1.0",
        model_type: settings.model_type,
        quantization: inputs.scheme,
        vocab_size: model.vocab,
        context_window_size: model_config::size(model.context),
        sliding_window_size: model_config::size(model.window),
        prefill_chunk_size: model.prefill,
        attention_sink_size: model_config::size(model.sink),
        tensor_parallel_shards: 1,
        pipeline_parallel_stages: 1,
        active_vocab_size: inputs.active_vocab_size.unwrap_or(model.vocab),
        temperature: generation("temperature", json!(1.0)),
        presence_penalty: generation("presence_penalty", json!(0.0)),
        frequency_penalty: generation("frequency_penalty", json!(0.0)),
        repetition_penalty: generation("repetition_penalty", json!(1.0)),
        top_p: generation("top_p", json!(1.0)),
        tokenizer_files: TOKENIZER_FILES.into_iter().filter(present).collect(),
        tokenizer_info: inputs.tokenizer_info,
        conv_template: inputs.conv_template,
        pad_token_id: generation("pad_token_id", json!(0)),
        bos_token_id: generation("bos_token_id", json!(1)),
        eos_token_id: generation("eos_token_id", json!(2)),
        model_task: "chat",
        embedding_metadata: None,
        model_config: model.fields,
    };
    Ok(python_json::to_string(&document, python_json::Style::CHAT_CONFIG)?)
}

/// The part of `mlc-chat-config.json` that running a bundle needs; other keys are passed over.
#[derive(Clone, Debug, Deserialize)]
pub struct ChatConfig {
    /// The architecture.
    pub model_type: String,
    /// Name of the quantisation scheme.
    pub quantization: String,
    /// The architecture's settings, under MLC's names.
    pub model_config: Value,
    /// Rows of the embedding table and of the logits.
    pub vocab_size: u32,
    /// Names of the bundle's tokenizer files.
    #[serde(default)]
    pub tokenizer_files: Vec<String>,
    /// How messages become a prompt. Early bundles hold a preset's name here: see [`Self::conversation`].
    #[serde(default)]
    pub conv_template: Value,
    /// One id or a list of them.
    #[serde(default)]
    pub eos_token_id: Value,
}

impl ChatConfig {
    /// The conversation template, if it is one that packlight understands.
    pub fn conversation(&self) -> Option<Conversation> {
        match &self.conv_template {
            Value::String(name) => by_name(name).map(Preset::conversation),
            template => Conversation::deserialize(template).ok(),
        }
    }

    /// Token ids that end an answer: the conversation template's, or `eos_token_id` where there are none. WebLLM heeds the
    /// former only, and the latter may be MLC's default of 2, whatever token that is.
    pub fn stop_token_ids(&self) -> Vec<u32> {
        let template =
            self.conversation().map_or_else(Vec::new, |template| template.stop_token_ids);
        if template.is_empty() { token_ids(&self.eos_token_id) } else { template }
    }
}

/// The checkpoint's `eos_token_id`, one or several: `generation_config.json` is asked first, then `config.json`, then its
/// `text_config`.
pub fn eos_token_ids(generation_config: Option<&Value>, config: &Value) -> Vec<u32> {
    let files = generation_config.into_iter().chain([config, &config["text_config"]]);
    files
        .map(|file| token_ids(&file["eos_token_id"]))
        .find(|ids| !ids.is_empty())
        .unwrap_or_default()
}

fn token_ids(value: &Value) -> Vec<u32> {
    let ids = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    ids.iter().filter_map(Value::as_u64).filter_map(|id| u32::try_from(id).ok()).collect()
}
