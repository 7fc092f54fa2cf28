//! What can be wrong with a checkpoint: found before the first byte where possible, all of it at once.

use std::path::PathBuf;

use packlight_formats::config::ConfigError;
use packlight_formats::quant::SCHEMES;
use packlight_formats::safetensors::HeaderError;

use crate::overrides::OverrideError;

/// Why a checkpoint cannot be converted.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    #[error("`{}` is not a folder", .0.display())]
    NotAFolder(PathBuf),
    #[error("`{}` is not a Hugging Face checkpoint: it has no config.json", .0.display())]
    NoConfig(PathBuf),
    #[error("`{}` is not JSON: {reason}", .path.display())]
    BadJson { path: PathBuf, reason: String },
    #[error("`{}` has no model.safetensors and no model.safetensors.index.json", .0.display())]
    NoWeights(PathBuf),
    #[error("`{}` holds PyTorch pickles (`{file}`), which can run code when loaded and are not read", .folder.display())]
    Pickle { folder: PathBuf, file: String },
    #[error("`{}` is a GGUF file, whose weights are quantised already", .0.display())]
    Gguf(PathBuf),
    #[error("`{}` holds a LoRA adapter, not a whole model", .0.display())]
    Lora(PathBuf),
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("the file that codes wait in cannot be created in `{}`: {source}", .folder.display())]
    Scratch { folder: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Override(#[from] OverrideError),
    #[error("the checkpoint does not fit its config.json:{}", list(.0))]
    Faults(Vec<Fault>),
    #[error("tensor `{tensor}` in `{file}` has {value} at index {index:?}")]
    NonFinite { tensor: String, file: String, index: Vec<u64>, value: f32 },
    #[error(
        "tensor `{tensor}` in `{file}` has {value} at index {index:?}, which overflows {dtype}"
    )]
    Overflow {
        tensor: String,
        file: String,
        index: Vec<u64>,
        value: f32,
        dtype: packlight_formats::Dtype,
    },
}

/// One thing wrong with the files of a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    #[error("file `{0}` of the index is missing")]
    MissingFile(String),
    #[error(transparent)]
    Header(#[from] HeaderError),
    #[error("tensor `{tensor}` is in `{}` and, with other contents, in `{}`", .files[0], .files[1])]
    Ambiguous { tensor: String, files: [String; 2] },
    #[error("tensor `{tensor}` is missing; `{weight}` is made from it")]
    Missing { tensor: String, weight: String },
    #[error("tensor `{tensor}` is fp8, but its scales `{scales}` are missing")]
    MissingScales { tensor: String, scales: String },
    #[error("tensor `{tensor}` in `{file}` is {found:?}, but config.json makes it {expected:?}")]
    WrongShape { tensor: String, file: String, found: Vec<u64>, expected: Vec<u64> },
    #[error("tensor `{tensor}` in `{file}` is {dtype}, which is not read as a weight")]
    WrongDtype { tensor: String, file: String, dtype: String },
}

fn list(faults: &[Fault]) -> String {
    faults.iter().map(|fault| format!("\n  - {fault}")).collect()
}

impl ConvertError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NotAFolder(_) => "give the folder that holds config.json and model.safetensors".into(),
            Self::NoConfig(_) => "give the folder into which the whole checkpoint was downloaded".into(),
            Self::NoWeights(_) => "download the checkpoint's .safetensors files as well".into(),
            Self::Pickle { .. } => "convert it once: python3 -c \"from transformers import AutoModelForCausalLM as M; \
                 M.from_pretrained('CKPT', torch_dtype='auto').save_pretrained('CKPT-safetensors', safe_serialization=True)\""
                .into(),
            Self::Gguf(_) => "convert the original safetensors checkpoint instead".into(),
            Self::Lora(_) => "merge it into its base model first (peft: merge_and_unload, then save_pretrained)".into(),
            Self::Config(error) => error.hint(),
            Self::Faults(_) => "the files may be incomplete or belong to another config.json; download them again".into(),
            Self::Scratch { .. } => "choose an output folder that you may write into".into(),
            Self::Overflow { .. } => {
                "`--scheme q4bf16_1` or `q4f32_1` holds numbers as large; --allow-non-finite makes them infinite".into()
            }
            Self::NonFinite { .. } => {
                "the checkpoint is probably damaged; --allow-non-finite converts it all the same".into()
            }
            Self::Override(OverrideError::UnknownScheme { .. }) => {
                let names: Vec<&str> = SCHEMES.iter().map(|scheme| scheme.name).collect();
                format!("known schemes: {}", names.join(", "))
            }
            Self::Override(_) => "`packlight convert CKPT --dry-run` lists the names of all weights".into(),
            Self::BadJson { .. } => "the file may be incomplete: download it again".into(),
            Self::Io(_) => return None,
        })
    }
}
