//! A conversation to token ids: by the checkpoint's own template where the bundle has it, else by the bundle's preset.

use packlight_formats::chat_config::{ChatConfigError, Conversation, Message};

use super::template::{ChatTemplate, TemplateError};
use super::tokenizer::{Tokenizer, TokenizerError};

/// How messages become a prompt.
#[derive(Clone, Debug)]
pub enum ChatFormat {
    /// The checkpoint's own template.
    Jinja(ChatTemplate),
    /// `conv_template` of `mlc-chat-config.json`, which is what WebLLM uses.
    Preset(Box<Conversation>),
}

/// Why a conversation has no prompt.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    #[error(transparent)]
    Template(#[from] TemplateError),
    #[error(transparent)]
    Preset(#[from] ChatConfigError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

impl ChatFormat {
    /// The token ids of `messages`, up to where the model is to answer.
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
    ) -> Result<Vec<u32>, ChatError> {
        match self {
            // The template has written the special tokens, the first one too.
            Self::Jinja(template) => Ok(tokenizer.encode(&template.render(messages, true)?)?),
            Self::Preset(preset) => {
                let mut ids = preset.system_prefix_token_ids.clone().unwrap_or_default();
                ids.extend(tokenizer.encode(&preset.prompt(messages, true)?)?);
                Ok(ids)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use packlight_formats::chat_config::{Role, by_name};

    use super::super::tokenizer::SpecialTokens;
    use super::super::tokenizer::tests::byte_level;
    use super::*;

    #[test]
    fn bos_comes_once_whichever_way() {
        let tokenizer = byte_level();
        let messages = [Message::new(Role::User, "a")];
        let special = SpecialTokens {
            bos: Some("<s>".to_owned()),
            add_bos: true,
            ..SpecialTokens::default()
        };
        let source = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}";
        let jinja = ChatFormat::Jinja(ChatTemplate::new(source, special).unwrap());
        assert_eq!(jinja.encode(&tokenizer, &messages).unwrap(), [256, 97]);
        let mut preset = by_name("LM").unwrap().conversation();
        preset.system_prefix_token_ids = Some(vec![256]);
        assert_eq!(
            ChatFormat::Preset(Box::new(preset)).encode(&tokenizer, &messages).unwrap(),
            [256, 97]
        );
    }
}
