//! The conversation template of `mlc-chat-config.json`: how messages become one prompt.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ChatConfigError;

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions that stand before the conversation.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A message.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self { role, content: content.into() }
    }
}

/// `conv_template`, in the key order of MLC-LLM's `protocol/conversation_protocol.py`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Conversation {
    /// Name of the preset it came from.
    pub name: Option<String>,
    /// Text around the system message, which stands for `{system_message}`.
    pub system_template: String,
    /// The system message of a conversation that brings none.
    pub system_message: String,
    /// Token ids before the whole prompt.
    #[serde(default)]
    pub system_prefix_token_ids: Option<Vec<u32>>,
    /// Whether the first message gets its role although a system message stands before it.
    #[serde(default = "yes")]
    pub add_role_after_system_message: bool,
    /// What introduces each speaker.
    pub roles: Texts,
    /// The text of a message, which stands for `{user_message}` and so on.
    #[serde(default)]
    pub role_templates: Texts,
    /// Messages that start every conversation. packlight writes none.
    #[serde(default)]
    pub messages: Vec<Value>,
    /// What ends a message: one text, or one for the user's and one for the assistant's.
    pub seps: Vec<String>,
    /// Between role and content.
    #[serde(default)]
    pub role_content_sep: String,
    /// After the role of the message that the model is to write.
    #[serde(default)]
    pub role_empty_sep: String,
    /// Texts that end an answer.
    #[serde(default)]
    pub stop_str: Vec<String>,
    /// Token ids that end an answer.
    #[serde(default)]
    pub stop_token_ids: Vec<u32>,
    /// Whether `<think>` blocks of earlier answers are taken out.
    #[serde(default)]
    pub strip_reasoning_in_history: bool,
    /// Descriptions of functions. packlight writes none.
    #[serde(default)]
    pub function_string: String,
    /// Whether functions can be called. packlight writes `false`.
    #[serde(default)]
    pub use_function_calling: bool,
}

/// One text per speaker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Texts {
    /// The person's.
    pub user: String,
    /// The model's.
    pub assistant: String,
    /// A function's result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
}

impl Default for Texts {
    /// The role templates that every preset has.
    fn default() -> Self {
        Self {
            user: USER.to_owned(),
            assistant: ASSISTANT.to_owned(),
            tool: Some("{tool_message}".to_owned()),
        }
    }
}

const SYSTEM: &str = "{system_message}";
const USER: &str = "{user_message}";
const ASSISTANT: &str = "{assistant_message}";

fn yes() -> bool {
    true
}

impl Conversation {
    /// The prompt of `messages`, ending where the model is to answer if `add_generation_prompt`.
    ///
    /// The rule is `Conversation.as_prompt` of MLC-LLM's `protocol/conversation_protocol.py`, which WebLLM follows; the
    /// token ids of [`Self::system_prefix_token_ids`] come before the text.
    ///
    /// # Errors
    /// [`ChatConfigError::LateSystemMessage`]: the template has one place for a system message, the front.
    pub fn prompt(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, ChatConfigError> {
        let (system, turns) = match messages {
            [Message { role: Role::System, content }, turns @ ..] => (content.as_str(), turns),
            turns => (self.system_message.as_str(), turns),
        };
        self.prompt_with(&self.system_text(system), turns, add_generation_prompt)
    }

    /// The system message in its template.
    pub(super) fn system_text(&self, message: &str) -> String {
        self.system_template.replace(SYSTEM, message)
    }

    /// The prompt of `turns` after a system text that is already in its template; empty for none.
    pub(super) fn prompt_with(
        &self,
        system: &str,
        turns: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, ChatConfigError> {
        let mut prompt = system.to_owned();
        for (i, Message { role, content }) in turns.iter().enumerate() {
            let (name, text, end) = match role {
                Role::System => return Err(ChatConfigError::LateSystemMessage { index: i }),
                Role::User => {
                    let text = self.role_templates.user.replace(USER, content);
                    (&self.roles.user, text, self.seps.first())
                }
                Role::Assistant => {
                    let text = self.role_templates.assistant.replace(ASSISTANT, content);
                    (&self.roles.assistant, text, self.seps.last())
                }
            };
            // "[INST] system user [/INST]": the system text has already opened the first turn.
            if i > 0 || system.is_empty() || self.add_role_after_system_message {
                prompt += name;
                prompt += &self.role_content_sep;
            }
            prompt += &text;
            prompt += end.map_or("", String::as_str);
        }
        if add_generation_prompt {
            prompt += &self.roles.assistant;
            prompt += &self.role_empty_sep;
        }
        Ok(prompt)
    }
}

#[cfg(test)]
mod tests {
    use super::super::presets;
    use super::*;

    fn talk() -> Vec<Message> {
        vec![
            Message::new(Role::System, "S"),
            Message::new(Role::User, "a"),
            Message::new(Role::Assistant, "b"),
            Message::new(Role::User, "c"),
        ]
    }

    fn preset(name: &str) -> Conversation {
        presets::by_name(name).unwrap().conversation()
    }

    #[test]
    fn chatml() {
        assert_eq!(
            preset("chatml").prompt(&talk(), true).unwrap(),
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n\
             <|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
        );
    }

    #[test]
    fn the_system_text_may_open_the_first_turn() {
        assert_eq!(
            preset("mistral_default").prompt(&talk(), true).unwrap(),
            "[INST] Sa [/INST] b [INST] c [/INST]"
        );
        assert_eq!(
            preset("llama-2").prompt(&talk(), false).unwrap(),
            "[INST] <<SYS>>\nS\n<</SYS>>\n\na [/INST] b </s><s>[INST] c "
        );
    }

    #[test]
    fn the_templates_own_system_message_is_used_when_none_is_given() {
        let mut llama = preset("llama-3");
        let turns = &talk()[1..2];
        let text = "<|start_header_id|>user<|end_header_id|>\n\na<|eot_id|>";
        assert!(llama.prompt(turns, false).unwrap().contains("respectful and honest"));
        llama.system_template = "{system_message}".to_owned();
        llama.system_message.clear();
        assert_eq!(llama.prompt(turns, false).unwrap(), text);
    }

    #[test]
    fn a_late_system_message_is_an_error() {
        let messages = [Message::new(Role::User, "a"), Message::new(Role::System, "S")];
        let error = preset("chatml").prompt(&messages, true).unwrap_err();
        assert!(matches!(error, ChatConfigError::LateSystemMessage { index: 1 }), "{error}");
    }
}
