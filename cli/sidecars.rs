//! The files that a bundle carries beside its weights, made from those beside the checkpoint's.

use std::path::Path;

use packlight_convert::Checkpoint;
use packlight_formats::quant::Scheme;
use packlight_pack::Sidecar;

/// What MLC copies, in its order (mlc_llm/interface/gen_config.py).
const TOKENIZER_FILES: &[&str] = &[
    "tokenizer.model",
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "tokenizer_config.json",
];
/// What our runner needs beyond that.
const SETTINGS: &[&str] = &["chat_template.jinja", "generation_config.json"];

/// Files to write, and what there is to say about them.
pub(crate) struct Sidecars {
    pub(crate) files: Vec<Sidecar>,
    pub(crate) notes: Vec<String>,
}

pub(crate) fn collect(
    checkpoint: &Checkpoint,
    _scheme: &Scheme,
    _conv: Option<&str>,
) -> anyhow::Result<Sidecars> {
    Ok(Sidecars { files: copied(checkpoint.folder())?, notes: Vec::new() })
}

/// The files of a checkpoint that are copied as they are.
fn copied(folder: &Path) -> anyhow::Result<Vec<Sidecar>> {
    let present = TOKENIZER_FILES.iter().chain(SETTINGS).filter(|name| folder.join(name).is_file());
    present
        .map(|&name| Ok(Sidecar { path: name.into(), bytes: fs_err::read(folder.join(name))? }))
        .collect()
}
