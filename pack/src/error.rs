//! What can go wrong with a bundle's folder.

use std::io::ErrorKind;
use std::path::PathBuf;

use packlight_formats::manifest::ManifestError;

/// Why a bundle cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    #[error("output folder `{}` is not empty: it holds `{found}`", .folder.display())]
    NotEmpty { folder: PathBuf, found: String },
    #[error("output `{}` is a file", .0.display())]
    NotAFolder(PathBuf),
    #[error(
        "`{}` holds files that are of no bundle there and that this one would overwrite: {}",
        .folder.display(), .files.join(", ")
    )]
    Foreign { folder: PathBuf, files: Vec<String> },
    #[error("another process is writing into `{}`", .0.display())]
    Locked(PathBuf),
    #[error("`{}` holds the beginning of another bundle:{}", .folder.display(), list(.differences))]
    OtherOptions { folder: PathBuf, differences: Vec<String> },
    #[error("`{}` has room for {free} bytes, but {needed} are to be written", .folder.display())]
    NoSpace { folder: PathBuf, needed: u64, free: u64 },
    #[error("the bundle does not fit {}:{}", .host.unwrap_or("the limit"), list(.misfits))]
    DoesNotFit { host: Option<&'static str>, misfits: Vec<Misfit> },
    #[error(
        "the files beside the shards have {bytes} bytes, of which `{largest}` is the largest; they are held in memory, at most {most}"
    )]
    TooMuchBeside { bytes: u64, largest: String, most: u64 },
    #[error("`{0}` is not a bundle: it has no tensor-cache.json")]
    NotABundle(String),
    #[error("`{file}` is missing")]
    Missing { file: String },
    #[error("`{file}` has {found} bytes, expected {expected}")]
    WrongSize { file: String, found: u64, expected: u64 },
    #[error("`{file}` chunk {chunk} does not have the SHA-256 of the manifest")]
    WrongChunk { file: String, chunk: usize },
    #[error("`{file}` does not have the MD5 of tensor-cache.json")]
    WrongMd5 { file: String },
    #[error("the manifests disagree: {0}")]
    Disagree(String),
    #[error("writing `{path}` failed: {source}")]
    Write { path: String, source: std::io::Error },
    #[error("no file can be created in `{}`: {source}", .folder.display())]
    Create { folder: PathBuf, source: std::io::Error },
    // Not transparent: what went wrong on the way to a host is inside.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error("record {record} has {found} bytes, but {expected} were announced")]
    WrongLength { record: String, found: u64, expected: u64 },
}

/// A limit that a bundle breaks.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    #[error(
        "packlight.json has {bytes} bytes or more, a file may have {cap}, and it cannot be cut"
    )]
    Manifest { bytes: u64, cap: u64 },
    #[error("_headers has {bytes} bytes, a file may have {cap}, and it cannot be cut")]
    Headers { bytes: u64, cap: u64 },
    #[error("{0}")]
    File(String),
    #[error("it has {files} files, and {limit} are allowed")]
    Files { files: u64, limit: u64 },
    #[error("it has {bytes} bytes, and {limit} are allowed")]
    Bytes { bytes: u64, limit: u64 },
}

fn list(items: &[impl std::fmt::Display]) -> String {
    items.iter().map(|item| format!("\n  - {item}")).collect()
}

impl PackError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NotEmpty { .. } => {
                "choose another folder, or --force to replace the bundle in it".into()
            }
            Self::Foreign { .. } => "choose another folder, or move these files away".into(),
            Self::NotAFolder(_) => "choose another name for the output folder".into(),
            Self::Locked(_) => "wait until it is done, or choose another folder".into(),
            Self::OtherOptions { .. } => {
                "the options it was begun with continue it; --force starts over with these".into()
            }
            Self::NoSpace { .. } => "free some space, or choose a folder on another disk".into(),
            Self::DoesNotFit { misfits, .. } => misfits.iter().map(Misfit::hint).next()?.into(),
            Self::TooMuchBeside { .. } => {
                "a bundle is shards, a tokenizer and settings: move other files out of its folder".into()
            }
            Self::NotABundle(_) => {
                "give the folder that `packlight convert -o` wrote, or its URL".into()
            }
            Self::Write { source, .. } | Self::Create { source, .. } | Self::Io(source)
                if is_full(source) =>
            {
                "make room and run the same command again (without --force): it goes on where it stopped".into()
            }
            Self::Missing { .. }
            | Self::WrongSize { .. }
            | Self::WrongChunk { .. }
            | Self::WrongMd5 { .. }
            | Self::Disagree(_) => {
                "the bundle is damaged: `packlight verify` lists everything wrong with it".into()
            }
            Self::Manifest(_) => {
                "the bundle is damaged or was changed by hand: convert it again".into()
            }
            Self::Create { .. } => {
                "choose an output folder that you may write into, on a disk that takes files".into()
            }
            Self::Write { .. } | Self::Io(_) | Self::WrongLength { .. } => return None,
        })
    }
}

/// The disk, a quota, or the largest file that the system allows.
fn is_full(error: &std::io::Error) -> bool {
    let kinds = [ErrorKind::StorageFull, ErrorKind::QuotaExceeded, ErrorKind::FileTooLarge];
    kinds.contains(&error.kind())
}

impl Misfit {
    fn hint(&self) -> &'static str {
        match self {
            Self::Manifest { .. } | Self::Headers { .. } => "raise --max-file-bytes",
            Self::Files { .. } => {
                "larger files are fewer: raise --max-file-bytes, or choose another --host"
            }
            Self::File(_) => {
                "rename the file, or move it out of the folder: names must be plain, fit every system and differ in \
                 more than case"
            }
            Self::Bytes { .. } => "choose another --host, or a --scheme with fewer bits",
        }
    }
}
