//! One file on its way: read, compared with its hashes, sent.

use std::cell::Cell;

use packlight_formats::manifest::File;

use crate::error::PublishError;
use crate::naming::{cache_control, is_hashed};
use crate::release::{Release, identity};
use crate::store::{Headers, Store};

/// What is sent in one request: larger files come in parts, which stores take from 5 MiB. So much is in memory for each
/// file that is on its way, or a chunk, where the bundle's are larger.
const PART: u64 = 8 << 20;
/// Stores take ten thousand parts.
const MAX_PARTS: u64 = 10_000;

/// Sends a file. `sent` is told of bytes that have arrived; `failed` says that another file has failed, and that this one
/// need not go on.
pub(crate) async fn upload(
    store: &Store,
    release: &Release,
    file: &File,
    failed: &Cell<bool>,
    sent: impl Fn(u64),
) -> Result<(), PublishError> {
    let headers = Headers {
        media_type: file.media_type.clone(),
        cache_control: cache_control(is_hashed(&release.manifest, file)),
        identity: identity(file),
    };
    let name = file.path.as_str();
    let (count, step) = (file.sha256.len(), part_chunks(file.bytes, release.manifest.chunk_bytes));
    if count <= step {
        store.put(name, release.chunks(file, 0..count)?, &headers).await?;
        sent(file.bytes);
        return Ok(());
    }
    let mut parts = store.begin(name, &headers).await?;
    let mut send = async || {
        for start in (0..count).step_by(step) {
            if failed.get() {
                return Ok(false);
            }
            let bytes = release.chunks(file, start..count.min(start + step))?;
            let length = bytes.len() as u64;
            parts.put(bytes).await?;
            sent(length);
        }
        parts.complete().await.map(|()| true)
    };
    let done = send().await;
    if !matches!(done, Ok(true)) {
        parts.abort().await;
    }
    done.map(|_| ())
}

/// Chunks that are sent together: all parts but the last are equally large, as R2 wants it.
fn part_chunks(bytes: u64, chunk_bytes: u64) -> usize {
    let least = PART.max(bytes.div_ceil(MAX_PARTS));
    usize::try_from(least.div_ceil(chunk_bytes)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_what_stores_take() {
        for (bytes, chunk) in [(1, 4096), (9 << 20, 4096), (1 << 42, 8 << 20), (5 << 30, 64 << 20)]
        {
            let part = part_chunks(bytes, chunk) as u64 * chunk;
            assert!(part >= 5 << 20 && bytes.div_ceil(part) <= MAX_PARTS, "{bytes} {chunk}");
        }
        assert_eq!(part_chunks(2_000_000_000, 8 << 20), 1);
    }
}
