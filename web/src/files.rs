//! The worker's files as the runner's source of bytes.

use std::ops::Range;

use js_sys::Uint8Array;
use packlight_runner::source::{Source, SourceError};
use wasm_bindgen::prelude::wasm_bindgen;
use wasm_bindgen::{JsCast as _, JsValue};

#[wasm_bindgen]
extern "C" {
    /// An object of page/files.js.
    pub type Files;

    /// The bytes of a small file; null where there is none.
    #[wasm_bindgen(method, catch)]
    async fn file(this: &Files, path: &str) -> Result<JsValue, JsValue>;

    /// Bytes `start..end` of a file, all of them.
    #[wasm_bindgen(method, catch)]
    async fn range(this: &Files, path: &str, start: f64, end: f64) -> Result<JsValue, JsValue>;

    /// These come next, in this order.
    #[wasm_bindgen(method)]
    fn announce(this: &Files, paths: Vec<String>);
}

pub(crate) struct HostFiles(pub(crate) Files);

impl Source for HostFiles {
    async fn file(&self, path: &str) -> Result<Option<Vec<u8>>, SourceError> {
        let found = self.0.file(path).await.map_err(|error| io(path, &error))?;
        Ok(found.dyn_ref().map(Uint8Array::to_vec))
    }

    async fn range(&self, path: &str, range: Range<u64>) -> Result<Vec<u8>, SourceError> {
        // Sizes of files are far below 2^53.
        let found = self.0.range(path, range.start as f64, range.end as f64).await;
        let found = found.map_err(|error| io(path, &error))?;
        let bytes = found.dyn_ref().map(Uint8Array::to_vec).unwrap_or_default();
        let found = range.start + bytes.len() as u64;
        if found < range.end {
            return Err(SourceError::Truncated { path: path.into(), found, expected: range.end });
        }
        Ok(bytes)
    }

    fn announce(&self, paths: &[&str]) {
        self.0.announce(paths.iter().map(ToString::to_string).collect());
    }
}

/// The worker keeps the error itself, hint and all; see `Files.failure`.
fn io(path: &str, error: &JsValue) -> SourceError {
    SourceError::Io { path: path.into(), source: std::io::Error::other(format!("{error:?}")) }
}
