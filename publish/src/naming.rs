//! What a name says of a file: when it is sent, how long it may be cached, and whether it can be one of ours.

use std::collections::BTreeSet;

use packlight_formats::manifest::packlight::PACKLIGHT;
use packlight_formats::manifest::tensor_cache::{
    NDARRAY_CACHE, NDARRAY_CACHE_B16, TENSOR_CACHE, TENSOR_CACHE_B16,
};
use packlight_formats::manifest::{File, HEADERS, Names, Packlight, split_id, strip_part};

/// MLC's settings, the first file that WebLLM reads.
const CHAT_CONFIG: &str = "mlc-chat-config.json";

/// The files by which clients find a release, besides packlight.json. Nothing but a bundle has them.
pub(crate) const ENTRANCES: [&str; 5] =
    [TENSOR_CACHE, NDARRAY_CACHE, CHAT_CONFIG, TENSOR_CACHE_B16, NDARRAY_CACHE_B16];

/// For a name that never stands for other bytes.
const FOR_EVER: &str = "public, max-age=31536000, immutable";
/// For any other: it may be kept, but is asked for again, which costs no transfer while it is the same.
const ASK_AGAIN: &str = "no-cache";

/// Whether a file's name carries its content, so that the name alone says what is in it.
pub(crate) fn is_hashed(manifest: &Packlight, file: &File) -> bool {
    manifest.names == Names::Hashed && file.alias_of.is_none() && file.path != HEADERS
}

/// What a host is to say of caching.
pub(crate) fn cache_control(hashed: bool) -> &'static str {
    if hashed { FOR_EVER } else { ASK_AGAIN }
}

/// A file of weights, or a part of one.
pub(crate) fn is_weights(file: &File) -> bool {
    is_shard(plain(&file.path).0.as_str())
}

/// A file that names others or that a client begins with.
pub(crate) fn is_manifest(file: &File) -> bool {
    file.alias_of.is_some() || file.holds().is_some_and(|name| ENTRANCES.contains(&name))
}

/// A name without part number and content id, and whether it had an id.
fn plain(path: &str) -> (String, bool) {
    let whole = strip_part(path).unwrap_or(path);
    split_id(whole).map_or_else(|| (whole.to_owned(), false), |(name, _)| (name, true))
}

/// `params_shard_<n>.bin`.
fn is_shard(name: &str) -> bool {
    let number = name.strip_prefix("params_shard_").and_then(|rest| rest.strip_suffix(".bin"));
    number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// Which of the files at a prefix an earlier release has left: those that the manifest before this one lists, shards and
/// MLC's manifests, and files of either release under a name with another content id. Whatever else lies there is somebody's own.
pub(crate) fn stale<'a>(
    names: impl Iterator<Item = &'a String>,
    now: &Packlight,
    before: Option<&Packlight>,
) -> Vec<String> {
    let manifests = || before.into_iter().chain([now]);
    let held: BTreeSet<&str> =
        manifests().flat_map(|manifest| manifest.files.iter().filter_map(File::holds)).collect();
    let ours = |path: &str| {
        let (name, has_id) = plain(path);
        before.is_some_and(|manifest| manifest.file(path).is_some())
            || is_shard(&name)
            || ENTRANCES.contains(&name.as_str())
            || has_id && held.contains(name.as_str())
    };
    let current = |path: &str| path == PACKLIGHT || now.file(path).is_some();
    names.filter(|path| !current(path) && ours(path)).cloned().collect()
}
