//! Which conversation template a checkpoint gets: the preset that writes what the checkpoint's own template writes.

use std::fmt;

use super::conversation::{Conversation, Message, Role};
use super::presets::{PRESETS, Preset, by_name};
use super::{ChatConfigError, presets};

/// What the choice of a template needs to know about a checkpoint.
#[derive(Clone, Copy)]
pub struct Checkpoint<'a> {
    /// `model_type` of `config.json`.
    pub model_type: &'a str,
    /// The text of the token that begins every prompt, if the tokenizer names one.
    pub bos_token: Option<&'a str>,
    /// From [`super::eos_token_ids`].
    pub eos_token_ids: &'a [u32],
    /// The id of a token, given its text.
    pub token_id: &'a dyn Fn(&str) -> Option<u32>,
}

/// A conversation template for a checkpoint.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Where it came from.
    pub preset: &'static Preset,
    /// The preset with the checkpoint's own default system message and token ids.
    pub conversation: Conversation,
    /// Where its prompts differ from those of the checkpoint's template; empty if nowhere.
    pub differences: Vec<Difference>,
}

/// A way in which a conversation template writes another prompt than the checkpoint's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// The checkpoint has no chat template that could be compared.
    NothingToCompare,
    /// No preset writes even the first turn as the checkpoint does.
    EveryTurn,
    /// Turns after the first.
    LaterTurns,
    /// Conversations with a system message.
    SystemMessage,
    /// Conversations without a system message: an empty system turn is written, the checkpoint writes none.
    EmptySystemTurn,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NothingToCompare => "the checkpoint has no chat template to compare with",
            Self::EveryTurn => "no known template writes turns as the checkpoint's own does",
            Self::LaterTurns => "turns after the first differ from the checkpoint's own template",
            Self::SystemMessage => {
                "system messages are written differently from the checkpoint's own template"
            }
            Self::EmptySystemTurn => {
                "without a system message an empty system turn is written, the checkpoint's own template writes none"
            }
        })
    }
}

impl Difference {
    /// How much it weighs when presets are compared: more than all lesser ones together.
    fn weight(self) -> u32 {
        match self {
            Self::EmptySystemTurn => 1,
            Self::SystemMessage => 2,
            Self::LaterTurns => 4,
            Self::EveryTurn | Self::NothingToCompare => 8,
        }
    }
}

/// The preset that comes closest to the checkpoint's own template, which `render` applies to messages (the second
/// argument is Jinja's `add_generation_prompt`); `None` means that the template refuses them, or that there is none.
///
/// Presets that write the same text are told apart by their stop ids, then by the architecture they were made for. If
/// none fits even a first turn, the architecture decides, and where it does not, ChatML: see [`Choice::differences`].
pub fn choose(
    checkpoint: &Checkpoint,
    render: impl Fn(&[Message], bool) -> Option<String>,
) -> Choice {
    let reference = Reference::new(checkpoint, render);
    let fits = reference.iter().flat_map(|reference| {
        PRESETS.iter().filter_map(|preset| Some((preset, reference.compare(preset)?)))
    });
    let best = fits.min_by_key(|(preset, fit)| {
        let weight: u32 = fit.differences.iter().map(|difference| difference.weight()).sum();
        (weight, likelihood(preset, checkpoint))
    });
    match (best, &reference) {
        (Some((preset, fit)), Some(reference)) => {
            let mut conversation = with_ids_of(preset, checkpoint);
            conversation.system_message = fit.default_system.unwrap_or_default();
            conversation.system_prefix_token_ids = reference.bos_id.map(|id| vec![id]);
            Choice { preset, conversation, differences: fit.differences }
        }
        (_, reference) => {
            let made = |preset: &&Preset| preset.made_for.contains(&checkpoint.model_type);
            let preset = PRESETS.iter().filter(made).min_by_key(|p| likelihood(p, checkpoint));
            let preset = preset.unwrap_or(&presets::CHATML);
            let difference = match reference {
                Some(_) => Difference::EveryTurn,
                None => Difference::NothingToCompare,
            };
            let conversation = with_ids_of(preset, checkpoint);
            Choice { preset, conversation, differences: vec![difference] }
        }
    }
}

/// The preset called `name`, with the checkpoint's token ids.
///
/// # Errors
/// [`ChatConfigError::UnknownPreset`], which lists the known names.
pub fn named(checkpoint: &Checkpoint, name: &str) -> Result<Conversation, ChatConfigError> {
    let preset = by_name(name);
    let preset = preset.ok_or_else(|| ChatConfigError::UnknownPreset { name: name.to_owned() })?;
    Ok(with_ids_of(preset, checkpoint))
}

/// Smaller is likelier.
fn likelihood(preset: &Preset, checkpoint: &Checkpoint) -> (bool, bool) {
    let (own, its) = (checkpoint.eos_token_ids, preset.stop_token_ids);
    let same_stops = own.iter().all(|id| its.contains(id)) && its.iter().all(|id| own.contains(id));
    (!same_stops, !preset.made_for.contains(&checkpoint.model_type))
}

/// The preset with ids that mean in this tokenizer what they mean in the one it was written for.
fn with_ids_of(preset: &Preset, checkpoint: &Checkpoint) -> Conversation {
    let mut conversation = preset.conversation();
    let bos_id = checkpoint.bos_token.and_then(checkpoint.token_id);
    if let (Some(prefix), Some(id)) = (&mut conversation.system_prefix_token_ids, bos_id) {
        *prefix = vec![id];
    }

    let named: Vec<u32> = preset.stop_str.iter().filter_map(|s| (checkpoint.token_id)(s)).collect();
    let evidence = if named.is_empty() { checkpoint.eos_token_ids } else { &named };
    let same_tokenizer = evidence.iter().all(|id| preset.stop_token_ids.contains(id));
    let mut ids = if same_tokenizer { preset.stop_token_ids.to_vec() } else { Vec::new() };
    for &id in checkpoint.eos_token_ids.iter().chain(&named) {
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    conversation.stop_token_ids = ids;
    conversation
}

/// What the checkpoint's own template writes for the conversations that presets are tried on.
struct Reference {
    /// The token that the template puts first.
    bos_id: Option<u32>,
    first: String,
    later: Option<String>,
    /// `None` if the template takes no system message.
    system: Option<String>,
    system_later: Option<String>,
}

struct Fit {
    default_system: Option<String>,
    differences: Vec<Difference>,
}

const SYSTEM: &str = "Answer like a sailor.";
const MARK: &str = "\u{f8ff}";

fn turns() -> [Message; 3] {
    [
        Message::new(Role::User, "What is a sloop?"),
        Message::new(Role::Assistant, "A boat with one mast."),
        Message::new(Role::User, "And a ketch?"),
    ]
}

fn with_system(turns: &[Message]) -> Vec<Message> {
    let mut messages = vec![Message::new(Role::System, SYSTEM)];
    messages.extend_from_slice(turns);
    messages
}

impl Reference {
    fn new(
        checkpoint: &Checkpoint,
        render: impl Fn(&[Message], bool) -> Option<String>,
    ) -> Option<Self> {
        let all = turns();
        let first = render(&all[..1], true)?;
        let bos = checkpoint.bos_token.filter(|bos| !bos.is_empty() && first.starts_with(bos));
        // A preset has the token as an id before the text.
        let render = |messages: &[Message]| {
            let text = render(messages, true)?;
            Some(bos.and_then(|bos| text.strip_prefix(bos)).unwrap_or(&text).to_owned())
        };
        Some(Self {
            bos_id: bos.and_then(checkpoint.token_id),
            first: render(&all[..1])?,
            later: render(&all),
            system: render(&with_system(&all[..1])),
            system_later: render(&with_system(&all)),
        })
    }

    /// `None` if not even the first turn is the same.
    fn compare(&self, preset: &Preset) -> Option<Fit> {
        let mut conversation = preset.conversation();
        let all = turns();
        let default_system = default_system(&conversation, &all[..1], &self.first).ok()?;
        conversation.system_message = default_system.clone().unwrap_or_default();

        let mut differences = Vec::new();
        let own_system = default_system.as_deref().map(|message| conversation.system_text(message));
        let own_system = own_system.unwrap_or_default();
        if conversation.prompt_with(&own_system, &all, true).ok() != self.later {
            differences.push(Difference::LaterTurns);
        }
        let prompt = |messages: &[Message]| conversation.prompt(messages, true).ok();
        let system = [(&self.system, &all[..1]), (&self.system_later, &all[..])];
        // Later turns that differ anyway say nothing about the system message.
        let cases = if differences.is_empty() { &system[..] } else { &system[..1] };
        let differs = |(text, turns): &(&Option<String>, &[Message])| {
            text.is_some() && prompt(&with_system(turns)) != **text
        };
        if cases.iter().any(differs) {
            differences.push(Difference::SystemMessage);
        }
        if prompt(&all[..1]).as_ref() != Some(&self.first) {
            differences.push(Difference::EmptySystemTurn);
        }
        Some(Fit { default_system, differences })
    }
}

/// No system message makes the preset write the text.
struct NoFit;

/// The system message that makes the preset write `text`; `None` if it writes it without any system text.
fn default_system(
    conversation: &Conversation,
    turns: &[Message],
    text: &str,
) -> Result<Option<String>, NoFit> {
    let prompt = |system: &str| conversation.prompt_with(system, turns, true).map_err(|_| NoFit);
    if prompt("")? == text {
        return Ok(None);
    }
    let marked = prompt(&conversation.system_text(MARK))?;
    match marked.split_once(MARK) {
        // Without a mark of the preset's own before it any text would pass for a system message.
        Some((head, tail)) if !head.is_empty() => {
            let message = text.strip_prefix(head).and_then(|rest| rest.strip_suffix(tail));
            message.map(|message| Some(message.to_owned())).ok_or(NoFit)
        }
        _ => Err(NoFit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoint<'a>(
        model_type: &'a str,
        eos_token_ids: &'a [u32],
        token_id: &'a dyn Fn(&str) -> Option<u32>,
    ) -> Checkpoint<'a> {
        Checkpoint { model_type, bos_token: Some("<s>"), eos_token_ids, token_id }
    }

    /// ChatML with an optional message of its own where none is given.
    fn chatml(default: Option<&str>, messages: &[Message]) -> String {
        let turn = |role: &str, text: &str| format!("<|im_start|>{role}\n{text}<|im_end|>\n");
        let default = default.filter(|_| messages[0].role != Role::System);
        let system = default.map(|text| turn("system", text)).unwrap_or_default();
        let turns = messages.iter().map(|Message { role, content }| match role {
            Role::System => turn("system", content),
            Role::User => turn("user", content),
            Role::Assistant => turn("assistant", content),
        });
        system + &turns.collect::<String>() + "<|im_start|>assistant\n"
    }

    #[test]
    fn chatml_without_a_system_message_of_its_own() {
        let token = |text: &str| (text == "<|im_end|>").then_some(2);
        let choice = choose(&checkpoint("llama", &[2], &token), |m, _| Some(chatml(None, m)));
        assert_eq!(choice.preset.name, "chatml");
        assert_eq!(choice.differences, [Difference::EmptySystemTurn]);
        assert_eq!(choice.conversation.system_message, "");
        assert_eq!(choice.conversation.stop_token_ids, [2]);
        assert_eq!(choice.conversation.system_prefix_token_ids, None);
    }

    #[test]
    fn the_checkpoints_own_system_message_and_ids_are_written() {
        let token = |text: &str| match text {
            "<|im_end|>" => Some(7),
            "<|endoftext|>" => Some(5),
            "<s>" => Some(1),
            _ => None,
        };
        let own = Some("You are Qwen.");
        let render = |m: &[Message], _| Some(format!("<s>{}", chatml(own, m)));
        let choice = choose(&checkpoint("qwen2", &[7], &token), render);
        assert_eq!(choice.preset.name, "qwen2");
        assert_eq!(choice.differences, []);
        assert_eq!(choice.conversation.system_message, "You are Qwen.");
        assert_eq!(choice.conversation.stop_token_ids, [7, 5]);
        assert_eq!(choice.conversation.system_prefix_token_ids, Some(vec![1]));
    }

    #[test]
    fn the_presets_ids_stay_where_the_tokenizer_is_the_one_it_was_made_for() {
        let token = |text: &str| match text {
            "<|im_end|>" => Some(151_645),
            "<|endoftext|>" => Some(151_643),
            _ => None,
        };
        let render = |m: &[Message], _| Some(chatml(None, m));
        let choice = choose(&checkpoint("qwen3", &[151_645, 151_643], &token), render);
        assert_eq!(choice.preset.name, "qwen3");
        assert_eq!(choice.conversation.stop_token_ids, [151_643, 151_645]);
    }

    #[test]
    fn a_template_that_refuses_system_messages_is_no_difference() {
        let gemma = |m: &[Message], _: bool| {
            if m[0].role == Role::System {
                return None;
            }
            by_name("gemma_instruction")?.conversation().prompt(m, true).ok()
        };
        let choice = choose(&checkpoint("gemma2", &[1, 107], &|_| None), gemma);
        assert_eq!(choice.preset.name, "gemma_instruction");
        assert_eq!(choice.differences, []);
        let choice = choose(&checkpoint("gemma3_text", &[1, 106], &|_| None), gemma);
        assert_eq!(choice.preset.name, "gemma3_instruction");
    }

    #[test]
    fn every_preset_is_found_by_its_own_prompts() {
        for preset in PRESETS {
            let conversation = preset.conversation();
            let render = |m: &[Message], end| conversation.prompt(m, end).ok();
            let model_type = preset.made_for.first().copied().unwrap_or("llama");
            let choice = choose(&checkpoint(model_type, preset.stop_token_ids, &|_| None), render);
            assert_eq!(choice.differences, [], "{}", preset.name);
            assert_eq!(choice.conversation.system_message, conversation.system_message);
            let prompt = |c: &Conversation| c.prompt(&turns(), true).unwrap();
            assert_eq!(prompt(&choice.conversation), prompt(&conversation));
        }
    }

    #[test]
    fn without_a_fit_the_architecture_decides_and_it_is_said() {
        let odd = |m: &[Message], _: bool| Some(format!("### {}", m[0].content));
        let choice = choose(&checkpoint("mistral", &[2], &|_| None), odd);
        assert_eq!(choice.preset.name, "mistral_default");
        assert_eq!(choice.differences, [Difference::EveryTurn]);
        let choice = choose(&checkpoint("llama", &[9], &|_| None), |_, _| None);
        assert_eq!(choice.preset.name, "chatml");
        assert_eq!(choice.differences, [Difference::NothingToCompare]);
        assert_eq!(choice.conversation.stop_token_ids, [9]);
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = named(&checkpoint("llama", &[2], &|_| None), "chatlm").unwrap_err().to_string();
        assert!(error.contains("`chatlm`") && error.contains("`chatml`"), "{error}");
    }
}
