//! What can go wrong on the way into a store, said without the secrets that open it.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::path::PathBuf;

use packlight_formats::manifest::ManifestError;

use crate::connector::METADATA;

/// Why a bundle is not published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    #[error("`{url}` is no place to publish to: {reason}")]
    Url { url: String, reason: String, hint: &'static str },
    #[error("`{}` has no packlight.json", .0.display())]
    NoManifest(PathBuf),
    #[error("`{file}` is not what packlight.json says: nothing of it was sent")]
    Damaged { file: String },
    #[error("`{url}` holds another release: its `{file}` is not this bundle's")]
    Differs { url: String, file: String },
    #[error("there are no credentials for `{url}`: {reason}")]
    Credentials { url: String, reason: String },
    #[error("`{url}`: {doing} is refused ({status}{})", spaced(.code.as_deref()))]
    Denied { url: String, doing: String, status: u16, code: Option<String> },
    #[error("`{url}`: there is no such bucket or container")]
    NoBucket { url: String },
    #[error("`{url}`: {doing} failed: {reason}")]
    Store { url: String, doing: String, reason: String, hint: &'static str },
    #[error("`{url}`: another publish has changed `packlight.json` meanwhile")]
    Overtaken { url: String },
    #[error("`{url}`: `{file}` was sent, but is not there: the release was not switched")]
    Incomplete { url: String, file: String },
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error("{0}")]
    Io(#[from] io::Error),
}

fn spaced(code: Option<&str>) -> String {
    code.map_or_else(String::new, |code| format!(" {code}"))
}

impl PublishError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Url { hint, .. } | Self::Store { hint, .. } => (*hint).into(),
            Self::NoManifest(_) => {
                "give a bundle's folder; `packlight pack BUNDLE -o NEW` makes one of MLC-LLM's publishable".into()
            }
            Self::Damaged { .. } => {
                "the bundle is damaged: `packlight verify` lists everything wrong with it".into()
            }
            Self::Differs { .. } => {
                "files that keep their names would mix both: `packlight pack BUNDLE -o NEW --names hashed` makes a bundle that can lie beside it, or give a new prefix".into()
            }
            Self::Credentials { url, .. } => variables(url).into(),
            Self::Denied { url, .. } => format!(
                "the credentials must allow listing, reading, writing and, for --prune, deleting there; {}",
                variables(url)
            ),
            Self::NoBucket { .. } => {
                "create it first, and check its name, the region and the endpoint (AWS_REGION, AWS_ENDPOINT_URL)".into()
            }
            Self::Overtaken { .. } => "run it again, once the other has ended".into(),
            Self::Incomplete { .. } => "run it again; does something else delete files there?".into(),
            Self::Manifest(_) => "the bundle is damaged or was changed by hand: convert it again".into(),
            Self::Io(_) => return None,
        })
    }

    /// What object_store says, in our words. `doing` says what was tried.
    pub(crate) fn store(url: &str, doing: &str, error: &object_store::Error) -> Self {
        let (url, doing) = (url.to_owned(), doing.to_owned());
        if asked_the_cloud(error) {
            let reason = "no variables are set, and this machine is given none".into();
            return Self::Credentials { url, reason };
        }
        let answer = answer(error);
        if let Some((status @ (401 | 403), code)) = answer {
            return Self::Denied { url, doing, status, code };
        }
        let reason = match answer {
            Some((404, Some(code))) if code == "NoSuchBucket" || code == "ContainerNotFound" => {
                return Self::NoBucket { url };
            }
            Some((status, code)) => format!("status {status}{}", spaced(code.as_deref())),
            None => mask(&root(error).to_string()),
        };
        Self::Store { url, doing, reason, hint: remedy(error) }
    }
}

/// What to do about an error without a status: a folder's, or the network's.
fn remedy(error: &object_store::Error) -> &'static str {
    match root(error).downcast_ref().map(io::Error::kind) {
        Some(ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) => {
            "you must be allowed to write there: change the folder's permissions, or give another folder"
        }
        Some(ErrorKind::NotADirectory) => "a file is in the way: give another folder",
        Some(ErrorKind::StorageFull) => {
            "free some space, and run the same command again: what is there whole is not sent again"
        }
        _ => "run the same command again: what is there whole is not sent again",
    }
}

fn variables(url: &str) -> &'static str {
    match url.split_once("://").map(|(scheme, _)| scheme) {
        Some("gs") => "set GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT to a key file",
        Some("az" | "abfs" | "abfss") => {
            "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY (or AZURE_STORAGE_SAS_KEY, or AZURE_CLIENT_ID, _SECRET and AZURE_TENANT_ID)"
        }
        _ => {
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (profiles are not read: `aws configure export-credentials --format env` prints theirs)"
        }
    }
}

/// The status that the store answered with, and the code in its answer. The rest of the answer may repeat what was sent.
///
/// object_store keeps the type that holds them to itself, so they are read off its text.
fn answer(error: &object_store::Error) -> Option<(u16, Option<String>)> {
    let text = root(error).to_string();
    let said = text.strip_prefix("Server returned ").and_then(|text| {
        let (_, answer) = text.split_once("status code: ")?;
        let status = answer.get(..3)?.parse().ok()?;
        let code = answer.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
        let code = code.map(|(code, _)| code.to_owned());
        let sound =
            |code: &String| code.len() < 64 && code.bytes().all(|b| b.is_ascii_alphanumeric());
        Some((status, code.filter(sound)))
    });
    said.or(match error {
        object_store::Error::Unauthenticated { .. } => Some((401, None)),
        object_store::Error::PermissionDenied { .. } => Some((403, None)),
        _ => None,
    })
}

/// Whether what failed was looking for credentials where clouds hand them to their own machines.
fn asked_the_cloud(error: &object_store::Error) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let text = error.to_string();
        let hosts = || METADATA.iter().any(|host| text.contains(&format!("//{host}/")));
        // Another host can be set in its place.
        if text.contains("/latest/api/token") || text.contains("/latest/meta-data/") || hosts() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// The innermost cause: the outer ones say where, which we know, with addresses that can hold signatures.
fn root<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    let mut innermost = error;
    while let Some(cause) = innermost.source() {
        innermost = cause;
    }
    innermost
}

/// Text of others without queries, which are where signatures are, and without what the environment holds of secrets.
fn mask(text: &str) -> String {
    let names = ["KEY", "SECRET", "TOKEN", "SAS", "PASSWORD"];
    let secret = |name: &str| names.iter().any(|part| name.to_ascii_uppercase().contains(part));
    let variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let masked = variables
        .filter(|(name, value)| secret(name) && value.len() > 3)
        .fold(text.to_owned(), |text, (_, value)| text.replace(&value, "***"));
    let words = masked.split(' ').map(|word| match word.split_once('?') {
        Some((address, _)) if address.contains("://") => address,
        _ => word,
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Text that object_store says of its settings.
pub(crate) fn said(error: &object_store::Error) -> String {
    mask(&root(error).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_trying_again_does_not_mend_has_its_own_hint() {
        let hint = |kind: ErrorKind| {
            let source = Box::new(io::Error::from(kind));
            let error = object_store::Error::Generic { store: "LocalFileSystem", source };
            PublishError::store("file:///a", "writing `b`", &error).hint().unwrap()
        };
        assert!(hint(ErrorKind::PermissionDenied).contains("permissions"));
        assert!(hint(ErrorKind::StorageFull).contains("space"));
        assert!(hint(ErrorKind::ConnectionReset).starts_with("run the same command again"));
    }

    #[test]
    fn no_signature_is_repeated() {
        assert_eq!(mask("GET https://a/b?sig=x&y=z in 3 s"), "GET https://a/b in 3 s");
        assert_eq!(mask("what now?"), "what now?");
    }
}
