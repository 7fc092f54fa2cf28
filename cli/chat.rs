//! `packlight run --chat`: a conversation, line by line.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use anyhow::Context as _;
use packlight_formats::chat_config::{Message, Role};
use packlight_runner::bundle::Bundle;
use packlight_runner::engine::Engine;
use packlight_runner::source::Source;
use packlight_runner::text::{Text, TextError};
use serde_json::json;

use crate::answer::{self, Answer, End, Limit, Manner};
use crate::args::RunArgs;
use crate::interrupt::Interrupt;
use crate::report::{self, Hinted};
use crate::run::{load_for, no_tokenizer, system};

/// Room for a conversation where `--context` does not say: some pages, in a KV cache that fits most devices.
const DEFAULT_CONTEXT: u32 = 4096;
/// A line that begins a new conversation.
const CLEAR: &str = "/clear";

/// Reads messages until standard input ends. A message that cannot be answered is dropped with an error; from a file or a
/// pipe the command then fails in the end.
pub(crate) fn run<S: Source>(
    args: &RunArgs,
    bundle: &Bundle<S>,
    manner: &Manner<'_>,
) -> anyhow::Result<bool> {
    let text = manner.text.ok_or_else(no_tokenizer)?;
    if args.count == Some(0) {
        return Err(Hinted::new("-n 0 leaves nothing to answer with", "leave -n out").into());
    }
    let opening: Vec<Message> = system(args).into_iter().collect();
    // A template that cannot be used is known before anything is loaded.
    let hello = [&opening[..], &[Message::new(Role::User, "Hello")]].concat();
    text.conversation(&hello)?;

    let context = args.context.unwrap_or(bundle.model().context.min(DEFAULT_CONTEXT));
    let (engine, _) = load_for(args, bundle, context)?;
    let interrupt = Interrupt::watch().context("Ctrl-C cannot be watched for")?;
    let mut chat = Chat { args, text, manner, engine, interrupt, messages: opening.clone() };
    let terminal = std::io::stdin().is_terminal();
    if terminal {
        eprintln!("{}, room for {context} tokens", chat.engine.runs_on());
        eprintln!("Ctrl-C ends a reply, Ctrl-D the conversation; {CLEAR} begins a new one");
    }
    let (mut turns, mut failed) = (0, 0);
    loop {
        if terminal {
            eprint!("> ");
            std::io::stderr().flush()?;
        }
        let Some(line) = read_line()? else { break };
        if line.trim().is_empty() {
            continue;
        }
        if line.trim() == CLEAR {
            chat.messages.clone_from(&opening);
            continue;
        }
        turns += 1;
        failed += u32::from(!chat.turn(line)?);
    }
    if terminal {
        eprintln!();
    } else if failed > 0 {
        anyhow::bail!("{failed} of {turns} messages were not answered");
    }
    Ok(true)
}

/// A conversation so far.
struct Chat<'a> {
    args: &'a RunArgs,
    text: &'a Text,
    manner: &'a Manner<'a>,
    engine: Engine,
    interrupt: Interrupt,
    messages: Vec<Message>,
}

impl Chat<'_> {
    /// Answers a message; `false` where it cannot be, and is forgotten.
    fn turn(&mut self, message: String) -> anyhow::Result<bool> {
        self.messages.push(Message::new(Role::User, message));
        let asked = self.text.conversation(&self.messages).map_err(anyhow::Error::from);
        let asked = asked.and_then(|prompt| Ok((self.limit(prompt.len())?, prompt)));
        let (limit, prompt) = match asked {
            Ok(asked) => asked,
            // These are about the message or the length of the conversation; another one may do.
            Err(error) if error.is::<TextError>() || error.is::<Hinted>() => {
                self.messages.pop();
                if self.args.json {
                    println!("{}", json!({ "error": format!("{error:#}") }));
                }
                report::print(&error);
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        let answer = self.answer(&prompt, limit)?;
        if self.args.json {
            println!("{}", answer::report(&answer, &prompt, &self.engine));
        } else {
            match answer.end {
                End::Context => eprintln!("note: ended because the context is full"),
                End::Interrupted => eprintln!("note: interrupted"),
                End::Length | End::Stop => {}
            }
        }
        if answer.generation.tokens.is_empty() {
            // Ctrl-C came before anything was said.
            self.messages.pop();
        } else {
            let said = answer.text.unwrap_or_default();
            self.messages.push(Message::new(Role::Assistant, said));
        }
        Ok(true)
    }

    /// How long an answer to a prompt of so many tokens can be.
    fn limit(&self, prompt: usize) -> Result<Limit, Hinted> {
        let context = self.engine.context();
        Limit::after(prompt, context, self.args.count).ok_or_else(|| {
            Hinted::new(
                format!(
                    "the conversation has {prompt} tokens, which leaves no room for an answer in a context of {context}"
                ),
                format!("{CLEAR} begins a new one, a higher --context has more room"),
            )
        })
    }

    /// Reads what is new in the conversation and answers; Ctrl-C ends either.
    fn answer(&mut self, prompt: &[u32], limit: Limit) -> anyhow::Result<Answer> {
        let Self { engine, manner, interrupt, .. } = self;
        interrupt.during(|| manner.answer(engine, prompt, limit, || interrupt.go_on()))
    }
}

/// The next line of standard input, without its end; `None` after the last.
fn read_line() -> anyhow::Result<Option<String>> {
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    if read.context("standard input cannot be read as text")? == 0 {
        return Ok(None);
    }
    Ok(Some(line.trim_end_matches(['\r', '\n']).to_owned()))
}
