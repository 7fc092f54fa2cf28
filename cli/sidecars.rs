//! The files that a bundle carries beside its weights, made from those beside the checkpoint's.

use packlight_convert::Checkpoint;
use packlight_formats::chat_config::{
    self, CHAT_CONFIG, Conversation, Inputs, TOKENIZER_FILES, TokenizerInfo, active_vocab_size,
    choose, eos_token_ids, named, token_id,
};
use packlight_formats::quant::Scheme;
use packlight_pack::Sidecar;
use packlight_runner::text::ChatTemplate;
use serde_json::Value;

/// What our runner needs beyond the tokenizer files that MLC copies.
pub(crate) const SETTINGS: [&str; 2] = ["chat_template.jinja", "generation_config.json"];

/// Files to write, and what there is to say about them.
pub(crate) struct Sidecars {
    pub(crate) files: Vec<Sidecar>,
    pub(crate) warnings: Vec<String>,
}

/// Copies what is copied, and makes mlc-chat-config.json from it.
///
/// `context` is the model's; `conv_template` names a preset; without it, the preset is taken that writes what the checkpoint's template writes.
pub(crate) fn collect(
    checkpoint: &Checkpoint,
    context: u32,
    scheme: &Scheme,
    conv_template: Option<&str>,
) -> anyhow::Result<Sidecars> {
    let mut warnings = Vec::new();
    let present = TOKENIZER_FILES
        .into_iter()
        .chain(SETTINGS)
        .filter(|name| checkpoint.folder().join(name).is_file());
    let files = present.map(|name| {
        Ok(Sidecar { path: name.into(), bytes: fs_err::read(checkpoint.folder().join(name))? })
    });
    let mut files: Vec<Sidecar> = files.collect::<anyhow::Result<_>>()?;

    let tokenizer = checkpoint.json("tokenizer.json")?;
    let generation_config = checkpoint.json("generation_config.json")?;
    if tokenizer.is_none() {
        warnings.push("the checkpoint has no tokenizer.json: the bundle runs on token ids only (`run --tokens`)".into());
    }
    let conversation = conversation(checkpoint, tokenizer.as_ref(), conv_template, &mut warnings)?;
    let names: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
    let json = chat_config::to_json(&Inputs {
        config: checkpoint.config(),
        context,
        generation_config: generation_config.as_ref(),
        scheme: scheme.name,
        tokenizer_files: &names,
        tokenizer_info: &TokenizerInfo::detect(tokenizer.as_ref().unwrap_or(&Value::Null))?,
        conv_template: &conversation,
        active_vocab_size: tokenizer.as_ref().and_then(active_vocab_size),
    })?;
    files.push(Sidecar { path: CHAT_CONFIG.into(), bytes: json.into_bytes() });
    Ok(Sidecars { files, warnings })
}

fn conversation(
    checkpoint: &Checkpoint,
    tokenizer: Option<&Value>,
    conv_template: Option<&str>,
    warnings: &mut Vec<String>,
) -> anyhow::Result<Conversation> {
    let settings = checkpoint.json("tokenizer_config.json")?.unwrap_or_default();
    let jinja = match fs_err::read_to_string(checkpoint.folder().join("chat_template.jinja")) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(error.into()),
    };
    let template = ChatTemplate::from_files(jinja.as_deref(), &settings).unwrap_or_else(|error| {
        warnings.push(format!("the chat template cannot be used: {error}"));
        None
    });
    let model_type =
        checkpoint.config().get("model_type").and_then(Value::as_str).unwrap_or_default();
    let eos =
        eos_token_ids(checkpoint.json("generation_config.json")?.as_ref(), checkpoint.config());
    let special = template.as_ref().map(ChatTemplate::special_tokens);
    let about = chat_config::Checkpoint {
        model_type,
        bos_token: special.and_then(|special| special.bos.as_deref()),
        eos_token_ids: &eos,
        token_id: &|text| tokenizer.and_then(|tokenizer| token_id(tokenizer, text)),
    };
    if let Some(name) = conv_template {
        return Ok(named(&about, name)?);
    }
    let choice = choose(&about, |messages, add_generation_prompt| {
        template.as_ref()?.render(messages, add_generation_prompt).ok()
    });
    for difference in &choice.differences {
        warnings.push(format!(
            "WebLLM's conversation template is `{}`: {difference}",
            choice.preset.name
        ));
    }
    Ok(choice.conversation)
}
