//! Errors as people read them: what, where, why, then a hint.

use std::error::Error;
use std::io::ErrorKind;

use packlight_convert::ConvertError;
use packlight_formats::chat_config::ChatConfigError;
use packlight_http::{HttpError, ServeError};
use packlight_pack::PackError;
use packlight_publish::PublishError;
use packlight_runner::bundle::BundleError;
use packlight_runner::engine::EngineError;
use packlight_runner::text::TextError;

/// An error of the command line itself, with its hint.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Hinted {
    pub(crate) message: String,
    pub(crate) hint: String,
}

impl Hinted {
    pub(crate) fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), hint: hint.into() }
    }
}

/// Prints an error, its causes and what to do about it.
pub(crate) fn print(error: &anyhow::Error) {
    let mut said = error.to_string();
    eprintln!("error: {said}");
    for cause in error.chain().skip(1) {
        let text = cause.to_string();
        // Transparent wrappers repeat their cause; say everything once.
        if !said.contains(&text) {
            eprintln!("  caused by: {text}");
            said = text;
        }
    }
    if let Some(hint) = error.chain().find_map(hint) {
        eprintln!("hint: {hint}");
    }
}

fn hint(error: &(dyn Error + 'static)) -> Option<String> {
    // An interface that speaks of files carries what went wrong inside an I/O error.
    let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    let http = error.downcast_ref().or(inner.and_then(|inner| inner.downcast_ref::<HttpError>()));
    http.and_then(HttpError::hint)
        .or_else(|| error.downcast_ref::<ServeError>().map(ServeError::hint))
        .or_else(|| error.downcast_ref::<Hinted>().map(|error| error.hint.clone()))
        .or_else(|| error.downcast_ref::<ConvertError>().and_then(ConvertError::hint))
        .or_else(|| error.downcast_ref::<PackError>().and_then(PackError::hint))
        .or_else(|| error.downcast_ref::<PublishError>().and_then(PublishError::hint))
        .or_else(|| error.downcast_ref::<EngineError>().and_then(EngineError::hint))
        .or_else(|| error.downcast_ref::<BundleError>().and_then(BundleError::hint))
        .or_else(|| error.downcast_ref::<TextError>().and_then(TextError::hint))
        .or_else(|| error.downcast_ref::<ChatConfigError>().map(|error| error.hint().into()))
        .or_else(|| io(error).and_then(io_hint).map(str::to_owned))
}

/// An error of the system. A transparent one is no link of the chain by itself.
fn io<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a std::io::Error> {
    error.downcast_ref().or_else(|| match error.downcast_ref() {
        Some(ConvertError::Io(error)) => Some(error),
        _ => None,
    })
}

fn io_hint(error: &std::io::Error) -> Option<&'static str> {
    Some(match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            "check who may read and write there, or choose another place"
        }
        ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::IsADirectory => {
            "check the path: each part of it but the last must be a folder"
        }
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            "make room there, or choose another disk"
        }
        _ => return None,
    })
}
