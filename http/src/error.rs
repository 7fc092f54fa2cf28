//! What can go wrong between a host and us, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

use packlight_formats::manifest::ManifestError;

/// Why something could not be had over HTTP.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error("`{url}` is not an address of a bundle: {reason}")]
    Address { url: String, reason: &'static str },
    #[error("HF_ENDPOINT `{url}` cannot be used: {reason}")]
    Endpoint { url: String, reason: &'static str },
    #[error("`{url}` cannot be reached: {reason}")]
    Unreachable { url: String, reason: String },
    #[error("`{url}`: TLS failed: {reason}")]
    Tls { url: String, reason: String },
    #[error("`{url}` is not there ({status})")]
    Missing { url: String, status: u16 },
    #[error("`{url}` is refused ({status})")]
    Denied { url: String, status: u16, hub: bool },
    #[error("`{url}`: too many requests (429){}", wait(*.seconds))]
    TooMany { url: String, seconds: Option<u64> },
    #[error("`{url}` answers with status {status}")]
    Status { url: String, status: u16 },
    #[error("`{url}` redirects too often")]
    Redirects { url: String },
    #[error("`{url}` redirects from https to http")]
    Downgrade { url: String },
    #[error("`{url}` answers with an HTML page")]
    Html { url: String },
    #[error("`{url}` is sent with Content-Encoding {encoding}")]
    Encoded { url: String, encoding: String },
    #[error("`{url}` has {found} bytes, expected {expected}")]
    Length { url: String, found: u64, expected: u64 },
    #[error("`{url}` was asked for bytes {asked} and answers with Content-Range `{found}`")]
    Range { url: String, asked: String, found: String },
    #[error("`{url}` breaks off at byte {at} of {expected} every time: {reason}")]
    Broken { url: String, at: u64, expected: u64, reason: String },
    #[error("`{url}` bytes {start}..{end} do not have the SHA-256 of packlight.json")]
    Chunk { url: String, start: u64, end: u64 },
    #[error("`{url}` does not have the hash that the hub lists")]
    Hash { url: String },
    #[error("`{url}` is more than {limit} bytes long")]
    TooLong { url: String, limit: u64 },
    #[error("`{url}`: {reason}")]
    Unexpected { url: String, reason: String },
    #[error("`{repository}` does not exist, or may not be read")]
    Repository { repository: String },
    #[error("`{repository}` is not a checkpoint: {reason}")]
    Checkpoint { repository: String, reason: String },
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error("cache `{}`: {source}", .path.display())]
    Cache { path: PathBuf, source: io::Error },
    #[error("cache `{}` has room for {free} bytes, but {needed} are to be downloaded", .folder.display())]
    NoSpace { folder: PathBuf, needed: u64, free: u64 },
}

const FULL: &str =
    "free some space with `packlight cache --limit SIZE`, or choose another place with --cache DIR";

fn wait(seconds: Option<u64>) -> String {
    seconds.map_or_else(String::new, |seconds| format!(", and asks to wait {seconds} s"))
}

impl HttpError {
    pub(crate) fn cache(path: &Path, source: io::Error) -> Self {
        Self::Cache { path: path.into(), source }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Address { .. } => {
                "give the folder's URL, like https://host/bundle/ or hf://owner/name@revision".into()
            }
            Self::Endpoint { .. } => {
                "give the mirror alone, like https://mirror.example; a token goes into HF_TOKEN".into()
            }
            Self::Unreachable { .. } => {
                "check the name and the network; what was downloaded is kept, so run it again".into()
            }
            Self::Tls { .. } => {
                "the certificate is checked against the system's roots; SSL_CERT_FILE names others".into()
            }
            Self::Missing { .. } => "check the address: it is the folder's, the one that holds packlight.json".into(),
            Self::Denied { hub: true, .. } => {
                "a private or gated repository needs a token in HF_TOKEN, and its conditions accepted; or the name is wrong".into()
            }
            Self::Denied { hub: false, .. } => "the host must let anyone read the files".into(),
            Self::TooMany { .. } => "wait and run it again: what was downloaded is kept".into(),
            Self::Status { .. } => "that is the host's fault: try later, or ask who runs it".into(),
            Self::Redirects { .. } | Self::Downgrade { .. } => {
                "give the address that it ends at, or mend the host's redirects".into()
            }
            Self::Html { .. } => {
                "the host shows a page where a file is missing or a login is needed; on the hub use hf://owner/name".into()
            }
            Self::Encoded { .. } => {
                "turn compression off for weights: ranges and lengths count compressed bytes".into()
            }
            Self::Length { .. } | Self::Chunk { .. } => {
                "the host holds another file than the bundle's: upload it again, and let caches expire; `packlight verify URL` lists every such file".into()
            }
            Self::Range { .. } => "the host's ranges are broken: serve the files without them".into(),
            Self::Broken { .. } => "run it again: what was downloaded is kept".into(),
            Self::Hash { .. } => "run it again: the file is downloaded anew".into(),
            Self::TooLong { .. } | Self::Unexpected { .. } => {
                "is that the right address, and does it speak the hub's API?".into()
            }
            Self::Repository { .. } => {
                "check owner, name and revision; of a private repository the hub says the same, unless HF_TOKEN holds a token that may read it".into()
            }
            Self::Checkpoint { .. } => {
                "packlight reads config.json with model.safetensors, whole or in files with an index".into()
            }
            Self::Manifest(_) => "the bundle is damaged or was changed by hand: publish it again".into(),
            Self::NoSpace { .. } => FULL.into(),
            Self::Cache { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                FULL.into()
            }
            Self::Cache { .. } => "choose another place with --cache DIR".into(),
        })
    }

    /// Whether the host could not be asked at all, as opposed to answering something wrong.
    pub(crate) fn is_offline(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::TooMany { .. })
            || matches!(self, Self::Status { status: 500.., .. })
    }
}

/// For interfaces that speak of files: a file that is not there, one that is wrong, or no connection.
impl From<HttpError> for io::Error {
    fn from(error: HttpError) -> Self {
        use HttpError as E;
        let kind = match &error {
            E::Missing { .. } => io::ErrorKind::NotFound,
            E::Denied { .. } => io::ErrorKind::PermissionDenied,
            E::Html { .. }
            | E::Encoded { .. }
            | E::Length { .. }
            | E::Range { .. }
            | E::Broken { .. }
            | E::Chunk { .. }
            | E::Redirects { .. }
            | E::Downgrade { .. } => io::ErrorKind::InvalidData,
            _ => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}
