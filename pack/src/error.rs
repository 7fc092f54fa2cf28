//! What can go wrong with a bundle's folder.

use std::path::PathBuf;

use packlight_formats::manifest::ManifestError;

/// Why a bundle cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    #[error("output folder `{}` is not empty: it holds `{found}`", .folder.display())]
    NotEmpty { folder: PathBuf, found: String },
    #[error("output `{}` is a file", .0.display())]
    NotAFolder(PathBuf),
    #[error("`{0}` is not a bundle: it has no tensor-cache.json")]
    NotABundle(String),
    #[error("writing `{path}` failed: {source}")]
    Write { path: String, source: std::io::Error },
    // Not transparent: what went wrong on the way to a host is inside.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error("record {record} has {found} bytes, but {expected} were announced")]
    WrongLength { record: String, found: u64, expected: u64 },
}

impl PackError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NotEmpty { .. } => {
                "choose another folder, or --force to replace the bundle in it".into()
            }
            Self::NotAFolder(_) => "choose another name for the output folder".into(),
            Self::NotABundle(_) => {
                "give the folder that `packlight convert -o` wrote, or its URL".into()
            }
            Self::Write { source, .. } if source.kind() == std::io::ErrorKind::StorageFull => {
                "the disk is full: free some space and run the same command again".into()
            }
            Self::Manifest(_) => {
                "the bundle is damaged or was changed by hand: convert it again".into()
            }
            Self::Write { .. } | Self::Io(_) | Self::WrongLength { .. } => return None,
        })
    }
}
