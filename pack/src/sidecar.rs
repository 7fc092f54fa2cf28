//! The small files of a bundle that travel beside the weights.

/// A file to write as it is: tokenizer, chat template, settings.
#[derive(Clone, Debug)]
pub struct Sidecar {
    /// Name in the bundle.
    pub path: String,
    /// Contents.
    pub bytes: Vec<u8>,
}

/// Bytes that no server should look into.
pub(crate) const BINARY: &str = "application/octet-stream";

/// What a web server should call a file.
pub fn media_type(path: &str) -> &'static str {
    match path.rsplit_once('.').map_or("", |(_, extension)| extension) {
        "json" => "application/json",
        "txt" | "jinja" => "text/plain; charset=utf-8",
        _ => BINARY,
    }
}
