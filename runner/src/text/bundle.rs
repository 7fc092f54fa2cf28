//! The text side of a bundle: its tokenizer, its chat template and what ends an answer.

use packlight_formats::chat_config::{
    CHAT_CONFIG, ChatConfig, Conversation, Message, Role, eos_token_ids,
};
use serde_json::Value;

use super::chat::{ChatError, ChatFormat};
use super::date::Date;
use super::stop::StopRules;
use super::template::ChatTemplate;
use super::tokenizer::{SpecialTokens, Tokenizer, TokenizerError};
use crate::bundle::{Bundle, BundleError};
use crate::source::Source;

/// Turns prompts into tokens and tokens into text.
pub struct Text {
    tokenizer: Tokenizer,
    special: SpecialTokens,
    /// `chat_template.jinja`.
    template: Option<String>,
    /// `tokenizer_config.json`.
    settings: Value,
    /// The conversation template of a plain MLC bundle. Ours has one too, but where there is no chat template it is a
    /// guess.
    preset: Option<Conversation>,
    today: Option<Date>,
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
    Chat(#[from] ChatError),
    #[error("the bundle has no chat template")]
    NoChatTemplate,
}

impl TextError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NoChatTemplate | Self::Chat(_) => {
                Some("--raw TEXT continues a text without a chat template".into())
            }
            _ => None,
        }
    }
}

impl Text {
    /// Reads the text files of a bundle; `None` where it has no tokenizer.
    pub async fn of<S: Source>(bundle: &Bundle<S>) -> Result<Option<Self>, TextError> {
        let Some(tokenizer) = bundle.file("tokenizer.json").await? else { return Ok(None) };
        let tokenizer = Tokenizer::from_bytes(tokenizer)?;
        let settings = json(bundle, "tokenizer_config.json").await?;
        let template = bundle.file("chat_template.jinja").await?;
        let template = template.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let mut token_ids =
            eos_token_ids(Some(&json(bundle, "generation_config.json").await?), &Value::Null);
        let config = serde_json::from_value::<ChatConfig>(json(bundle, CHAT_CONFIG).await?).ok();
        token_ids.extend(config.as_ref().map(ChatConfig::stop_token_ids).unwrap_or_default());
        let preset = config.filter(|_| !bundle.is_described());
        let preset = preset.and_then(|config| config.conversation());
        let texts = preset.iter().flat_map(|preset| preset.stop_str.clone()).collect();
        Ok(Some(Self {
            tokenizer,
            special: SpecialTokens::from_config(&settings),
            template,
            settings,
            preset,
            today: None,
            stops: StopRules { token_ids, texts },
        }))
    }

    /// With a date for chat templates that ask for one.
    #[must_use]
    pub fn with_date(self, today: Date) -> Self {
        Self { today: Some(today), ..self }
    }

    /// The tokens of a user's message, up to where the model is to answer.
    pub fn prompt(&self, message: &str) -> Result<Vec<u32>, TextError> {
        self.conversation(&[Message::new(Role::User, message)])
    }

    /// The tokens of a conversation, up to where the model is to answer.
    pub fn conversation(&self, messages: &[Message]) -> Result<Vec<u32>, TextError> {
        Ok(self.chat_format()?.encode(&self.tokenizer, messages)?)
    }

    /// The checkpoint's own template, else that of a plain MLC bundle. Read only when it is needed: a template that cannot
    /// be used does not matter to [`Text::raw`].
    fn chat_format(&self) -> Result<ChatFormat, TextError> {
        let template = ChatTemplate::from_files(self.template.as_deref(), &self.settings);
        match (template.map_err(ChatError::from)?, self.today, &self.preset) {
            (Some(template), Some(today), _) => Ok(ChatFormat::Jinja(template.with_date(today))),
            (Some(template), None, _) => Ok(ChatFormat::Jinja(template)),
            (None, _, Some(preset)) => Ok(ChatFormat::Preset(Box::new(preset.clone()))),
            (None, _, None) => Err(TextError::NoChatTemplate),
        }
    }

    /// The tokens of a text as it is, for a model to continue.
    pub fn raw(&self, text: &str) -> Result<Vec<u32>, TextError> {
        Ok(self.tokenizer.encode_plain(text, &self.special)?)
    }

    /// What the model expects a text to begin with.
    pub fn beginning(&self) -> Result<Vec<u32>, TextError> {
        Ok(self.tokenizer.beginning(&self.special)?)
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
