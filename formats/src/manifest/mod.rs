//! The two manifests of a bundle: MLC's `tensor-cache.json` and our `packlight.json`.
//!
//! Each is validated once, wholly, on reading; after that nothing it says can lead past a bound.

mod files;
mod names;
pub mod packlight;
pub mod requires;
#[cfg(test)]
mod schema;
pub mod tensor_cache;
#[cfg(test)]
mod tests;

pub use files::{File, HEADERS, Span};
pub use names::{Names, content_id, cut, part_name, split_id, strip_part, with_id};
pub use packlight::Packlight;
pub use requires::Requires;
pub use tensor_cache::TensorCache;

/// A manifest that cannot be trusted.
#[derive(Debug, thiserror::Error)]
#[error("`{file}`: {reason}")]
pub struct ManifestError {
    /// The manifest's file name.
    pub file: &'static str,
    /// What is wrong in it, naming the record or file.
    pub reason: String,
}
