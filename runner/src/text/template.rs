//! The checkpoint's own chat template, rendered as transformers renders it (`utils/chat_template_utils.py`).

use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value as Jinja};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, context};
use packlight_formats::chat_config::Message;
use packlight_formats::python_json;
use serde_json::Value;

use super::date::Date;
use super::tokenizer::SpecialTokens;

/// Why a chat could not be rendered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    #[error("the chat template is not valid Jinja: {0:#}")]
    Syntax(Error),
    #[error("tokenizer_config.json has several chat templates, none of them called `default`: {}", .0.join(", "))]
    NoDefault(Vec<String>),
    /// The template called `raise_exception`; the message is its author's.
    #[error("the chat template refuses these messages: {0}")]
    Refused(String),
    #[error("the chat template cannot be rendered: {0:#}")]
    Render(Error),
}

/// A chat template with the tokens that it writes by name.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    source: String,
    special: SpecialTokens,
    today: Option<Date>,
}

impl ChatTemplate {
    /// A template that knows no date: `strftime_now` is undefined, and templates that ask for it have a fixed one.
    pub fn new(source: &str, special: SpecialTokens) -> Result<Self, TemplateError> {
        let template = Self { source: without_generation_tags(source), special, today: None };
        template
            .environment()
            .template_from_str(&template.source)
            .map_err(TemplateError::Syntax)?;
        Ok(template)
    }

    /// From a checkpoint's or a bundle's files: the text of `chat_template.jinja`, which comes first, or `chat_template`
    /// of `tokenizer_config.json`, which is a text or a list of named ones. `None` if there is neither.
    pub fn from_files(
        chat_template: Option<&str>,
        tokenizer_config: &Value,
    ) -> Result<Option<Self>, TemplateError> {
        let special = SpecialTokens::from_config(tokenizer_config);
        let in_config = match &tokenizer_config["chat_template"] {
            Value::String(source) => Some(source.as_str()),
            Value::Array(named) => {
                let default = named.iter().find(|entry| entry["name"] == "default");
                let source = default.and_then(|entry| entry["template"].as_str());
                if source.is_none() && chat_template.is_none() {
                    let names = named.iter().filter_map(|entry| entry["name"].as_str());
                    return Err(TemplateError::NoDefault(names.map(str::to_owned).collect()));
                }
                source
            }
            _ => None,
        };
        chat_template.or(in_config).map(|source| Self::new(source, special)).transpose()
    }

    /// With a date for `strftime_now`. Whatever must not depend on the day it is made on goes without.
    #[must_use]
    pub fn with_date(mut self, today: Date) -> Self {
        self.today = Some(today);
        self
    }

    /// The tokens that the template writes by name.
    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.special
    }

    /// The prompt of `messages`, special tokens written out: encode it without adding any.
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, TemplateError> {
        let SpecialTokens { bos, eos, pad, unk, .. } = &self.special;
        // A token that does not exist is undefined, which prints as nothing; `none` would print as "None".
        let token = |text: &Option<String>| text.as_deref().map_or(Jinja::UNDEFINED, Jinja::from);
        let context = context! {
            messages => Jinja::from(Serde(messages)),
            add_generation_prompt,
            tools => (),
            documents => (),
            bos_token => token(bos),
            eos_token => token(eos),
            pad_token => token(pad),
            unk_token => token(unk),
        };
        let environment = self.environment();
        let template =
            environment.template_from_str(&self.source).map_err(TemplateError::Syntax)?;
        template.render(context).map_err(|error| match refusal(&error) {
            Some(message) => TemplateError::Refused(message),
            None => TemplateError::Render(error),
        })
    }

    fn environment(&self) -> Environment<'_> {
        let mut environment = Environment::new();
        let mut syntax = SyntaxConfig::builder();
        if let Ok(syntax) = syntax.trim_blocks(true).lstrip_blocks(true).build() {
            environment.set_syntax(syntax);
        }
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", tojson);
        environment.add_function("raise_exception", |message: String| -> Result<Jinja, Error> {
            let error = Error::new(ErrorKind::InvalidOperation, "raise_exception was called");
            Err(error.with_source(Refusal(message)))
        });
        if let Some(today) = self.today {
            environment.add_function("strftime_now", move |format: &str| {
                let text = today.format(format);
                text.map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
            });
        }
        environment
    }
}

/// What `raise_exception` was called with, on its way through the engine's error.
#[derive(Debug)]
struct Refusal(String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

fn refusal(error: &Error) -> Option<String> {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if let Some(Refusal(message)) = error.downcast_ref() {
            return Some(message.clone());
        }
        source = error.source();
    }
    None
}

/// transformers replaces Jinja's filter, which escapes for HTML, by `json.dumps(x, ensure_ascii=False, ...)`.
#[expect(clippy::needless_pass_by_value, reason = "filters own their keyword arguments")]
fn tojson(value: &Jinja, arguments: Kwargs) -> Result<String, Error> {
    let style = python_json::Style {
        indent: arguments.get("indent")?,
        ensure_ascii: arguments.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
    };
    arguments.assert_all_used()?;
    python_json::to_string(value, style).map_err(|error| {
        Error::new(ErrorKind::BadSerialization, "no JSON can be made of it").with_source(error)
    })
}

/// `{% generation %}` marks the assistant's part for training and renders what it encloses; minijinja has no such tag.
fn without_generation_tags(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else { break };
        let (before, tag) = (&rest[..start], &rest[start + 2..start + length]);
        result += before;
        let name = tag.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        let tag = match name {
            "generation" => tag.replace(name, "if true"),
            "endgeneration" => tag.replace(name, "endif"),
            _ => tag.to_owned(),
        };
        result.extend(["{%", &tag, "%}"]);
        rest = &rest[start + length + 2..];
    }
    result + rest
}

#[cfg(test)]
mod tests {
    use packlight_formats::chat_config::Role;
    use serde_json::json;

    use super::*;

    fn messages() -> Vec<Message> {
        vec![Message::new(Role::User, " a<b "), Message::new(Role::Assistant, "c")]
    }

    fn render(source: &str) -> Result<String, TemplateError> {
        let special = SpecialTokens { bos: Some("<s>".to_owned()), ..SpecialTokens::default() };
        ChatTemplate::new(source, special)?.render(&messages(), true)
    }

    #[test]
    fn blocks_leave_no_lines_behind() {
        let source = "{{ bos_token }}{{ eos_token }}\n  {% for m in messages %}\n[{{ m['role'] }}]{{ m.content }}\n  {% endfor %}\n\
                      {% if add_generation_prompt %}\n[assistant]{% endif %}\n";
        assert_eq!(render(source).unwrap(), "<s>\n[user] a<b \n[assistant]c\n[assistant]");
    }

    #[test]
    fn python_methods_and_loop_controls() {
        let source = "{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}\
                      {{ m.content.strip().upper() + m.get('role', '') }}{% endfor %}\
                      {% set ns = namespace(n=0) %}{% for m in messages[1:] %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}";
        assert_eq!(render(source).unwrap(), "A<Buser1");
    }

    #[test]
    fn json_is_pythons() {
        assert_eq!(
            render("{{ {'a': [1, 2.0, none, '<é>']} | tojson }}").unwrap(),
            r#"{"a": [1, 2.0, null, "<é>"]}"#
        );
        assert_eq!(render("{{ [1] | tojson(indent=2) }}").unwrap(), "[\n  1\n]");
        assert!(render("{{ [1] | tojson(colour=2) }}").is_err());
    }

    #[test]
    fn a_refusal_carries_the_templates_words() {
        let error =
            render("{% for m in messages %}{{ raise_exception('Only ' + 'users!') }}{% endfor %}")
                .unwrap_err();
        assert!(
            matches!(&error, TemplateError::Refused(message) if message == "Only users!"),
            "{error}"
        );
        let error = render("{{ messages[0].content.nonesuch() }}").unwrap_err();
        assert!(matches!(error, TemplateError::Render(_)), "{error}");
        assert!(matches!(render("{% if %}").unwrap_err(), TemplateError::Syntax(_)));
    }

    #[test]
    fn generation_tags_render_what_they_enclose() {
        assert_eq!(
            render(
                "a {%- generation -%} {{ bos_token }} {% endgeneration %}{% if true %}b{% endif %}"
            )
            .unwrap(),
            "a<s> b"
        );
        assert_eq!(without_generation_tags("{% x"), "{% x");
    }

    #[test]
    fn the_date_is_given_or_undefined() {
        let source = "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% else %}26 Jul 2024{% endif %}";
        assert_eq!(render(source).unwrap(), "26 Jul 2024");
        let template = ChatTemplate::new(source, SpecialTokens::default()).unwrap();
        let dated = template.with_date(Date::from_unix_seconds(951_782_400));
        assert_eq!(dated.render(&[], true).unwrap(), "29 Feb 2000");
    }

    #[test]
    fn the_file_comes_before_the_config_and_the_default_of_several_is_taken() {
        let text = |jinja, config: Value| {
            ChatTemplate::from_files(jinja, &config).unwrap().map(|t| t.render(&[], false).unwrap())
        };
        assert_eq!(text(Some("file"), json!({"chat_template": "config"})).as_deref(), Some("file"));
        assert_eq!(text(None, json!({"chat_template": "config"})).as_deref(), Some("config"));
        assert_eq!(text(None, json!({})), None);
        let several = json!([{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d{{ bos_token }}"}]);
        let config = json!({"chat_template": several, "bos_token": {"content": "<s>"}});
        assert_eq!(text(None, config).as_deref(), Some("d<s>"));
        let error = ChatTemplate::from_files(
            None,
            &json!({"chat_template": [{"name": "rag", "template": "t"}]}),
        );
        assert!(error.unwrap_err().to_string().ends_with(": rag"));
    }
}
