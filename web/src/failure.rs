//! Errors as the page shows them: what went wrong, and what its user can do.

use js_sys::{Error, Reflect};
use packlight_runner::answer::AnswerError;
use packlight_runner::bundle::BundleError;
use packlight_runner::engine::EngineError;
use packlight_runner::generate::GenerateError;
use packlight_runner::gpu::GpuError;
use wasm_bindgen::JsValue;

const DAMAGED: &str = "the bundle on the server is damaged: tell whoever publishes it";
const MEMORY: &str =
    "close other tabs that use the GPU, or choose a shorter context or a smaller model";
const UNSUITED: &str = "this device is too small for the model: choose a smaller one";

/// A message and a hint. The hints of the libraries are about a command line, so pages have their own.
pub(crate) struct Failure {
    message: String,
    hint: Option<&'static str>,
}

impl Failure {
    pub(crate) fn new(message: &impl ToString, hint: Option<&'static str>) -> Self {
        Self { message: message.to_string(), hint }
    }
}

/// An error about which its reader can do nothing.
pub(crate) fn plain(error: impl std::error::Error) -> Failure {
    Failure::new(&error, None)
}

/// An error of a manifest.
pub(crate) fn unreadable(error: impl std::error::Error) -> Failure {
    Failure::new(&error, Some("the bundle is damaged, or made by a newer packlight than this page"))
}

impl From<Failure> for JsValue {
    /// An `Error` with a property `hint`.
    fn from(failure: Failure) -> Self {
        let error = Error::new(&failure.message);
        if let Some(hint) = failure.hint {
            // Setting a property of a new object does not fail.
            Reflect::set(&error, &"hint".into(), &hint.into()).ok();
        }
        error.into()
    }
}

impl From<GpuError> for Failure {
    fn from(error: GpuError) -> Self {
        let hint = match &error {
            GpuError::NoAdapter | GpuError::Device { .. } => {
                "WebGPU is there, but no usable GPU: update the browser or the graphics driver"
            }
            GpuError::OutOfMemory { .. } | GpuError::Capacity(_) => MEMORY,
            GpuError::Lost { .. } => "the GPU was reset: reload the page",
            GpuError::Plan(_) | GpuError::Grid { .. } | GpuError::NoF16 { .. } => UNSUITED,
            GpuError::Upload(_) => DAMAGED,
            _ => return plain(error),
        };
        Self::new(&error, Some(hint))
    }
}

impl From<BundleError> for Failure {
    fn from(error: BundleError) -> Self {
        let hint = match &error {
            BundleError::NotABundle => {
                "give the folder that holds packlight.json or tensor-cache.json"
            }
            BundleError::Source(_) | BundleError::UnknownScheme(_) | BundleError::Describe(_) => {
                return plain(error);
            }
            _ => DAMAGED,
        };
        Self::new(&error, Some(hint))
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Bundle(error) => error.into(),
            EngineError::Gpu(error) => error.into(),
            error => plain(error),
        }
    }
}

impl From<AnswerError> for Failure {
    fn from(error: AnswerError) -> Self {
        let AnswerError::Generate(GenerateError::Engine(error)) = error else {
            return plain(error);
        };
        error.into()
    }
}
