//! A page that is sent along with a bundle: files beside it, and in folders below, that no manifest names.

use bytes::Bytes;

/// One of its files.
#[derive(Clone, Debug)]
pub struct PageFile {
    /// `index.html` or `page/main.js`: without a slash at its beginning, and no bundle file's name.
    pub path: String,
    pub media_type: String,
    pub bytes: Bytes,
}
