//! The text side of a bundle: its tokenizer, its chat template and what ends an answer.

use packlight_formats::chat_config::{ChatConfig, Message, Role, eos_token_ids};
use serde_json::Value;

use super::chat::{ChatError, ChatFormat};
use super::stop::StopRules;
use super::template::{ChatTemplate, TemplateError};
use super::tokenizer::{SpecialTokens, Tokenizer, TokenizerError};
use crate::bundle::{Bundle, BundleError};
use crate::source::Source;

/// Turns prompts into tokens and tokens into text.
pub struct Text {
    tokenizer: Tokenizer,
    special: SpecialTokens,
    chat: Option<ChatFormat>,
    stops: StopRules,
}

/// Why a bundle's text files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    #[error(transparent)]
    Bundle(#[from] BundleError),
    #[error("`{file}` is not JSON: {reason}")]
    BadJson { file: &'static str, reason: String },
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error(transparent)]
    Template(#[from] TemplateError),
    #[error(transparent)]
    Chat(#[from] ChatError),
    #[error("the bundle has no chat template")]
    NoChatTemplate,
}

impl TextError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NoChatTemplate => Some("--raw TEXT continues a text without one".into()),
            _ => None,
        }
    }
}

impl Text {
    /// Reads the text files of a bundle; `None` where it has no tokenizer.
    pub async fn of<S: Source>(bundle: &Bundle<S>) -> Result<Option<Self>, TextError> {
        let Some(tokenizer) = bundle.file("tokenizer.json").await? else { return Ok(None) };
        let tokenizer = Tokenizer::from_bytes(&tokenizer)?;
        let settings = json(bundle, "tokenizer_config.json").await?;
        let template = bundle.file("chat_template.jinja").await?;
        let template = template.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let chat = ChatTemplate::from_files(template.as_deref(), &settings)?.map(ChatFormat::Jinja);
        let mut token_ids =
            eos_token_ids(Some(&json(bundle, "generation_config.json").await?), &Value::Null);
        if let Ok(config) =
            serde_json::from_value::<ChatConfig>(json(bundle, "mlc-chat-config.json").await?)
        {
            token_ids.extend(config.stop_token_ids());
        }
        let stops = StopRules { token_ids, texts: Vec::new() };
        Ok(Some(Self { tokenizer, special: SpecialTokens::from_config(&settings), chat, stops }))
    }

    /// The tokens of a user's message, up to where the model is to answer.
    pub fn prompt(&self, message: &str) -> Result<Vec<u32>, TextError> {
        let chat = self.chat.as_ref().ok_or(TextError::NoChatTemplate)?;
        Ok(chat.encode(&self.tokenizer, &[Message::new(Role::User, message)])?)
    }

    /// The tokens of a text as it is, for a model to continue.
    pub fn raw(&self, text: &str) -> Result<Vec<u32>, TextError> {
        Ok(self.tokenizer.encode_plain(text, &self.special)?)
    }

    /// What the model expects a text to begin with.
    pub fn beginning(&self) -> Result<Vec<u32>, TextError> {
        Ok(self.tokenizer.beginning(&self.special)?)
    }

    /// Whether a message can be put through a chat template.
    pub fn chats(&self) -> bool {
        self.chat.is_some()
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// What ends an answer.
    pub fn stops(&self) -> &StopRules {
        &self.stops
    }
}

/// A JSON file of the bundle; null where there is none.
async fn json<S: Source>(bundle: &Bundle<S>, file: &'static str) -> Result<Value, TextError> {
    let Some(bytes) = bundle.file(file).await? else { return Ok(Value::Null) };
    serde_json::from_slice(&bytes)
        .map_err(|error| TextError::BadJson { file, reason: error.to_string() })
}
