//! A bundle on a web server: chunks come from the cache, or are verified on their way into it.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use packlight_formats::digest::sha256;
use packlight_formats::manifest::packlight::PACKLIGHT;
use packlight_formats::manifest::{File, Packlight};
use ureq::http::header;

use crate::address::encode;
use crate::cache::{BundleEntry, Cache};
use crate::client::{Client, Header, is_html, text};
use crate::error::HttpError;
use crate::read_ahead::Queue;
use crate::stream::Stream;

/// packlight.json, or another manifest, is read whole; a hundred times what large bundles need.
pub(crate) const MAX_SMALL: u64 = 256 << 20;

/// A bundle's folder on a web server.
#[derive(Debug)]
pub struct Remote {
    pub(crate) shared: Arc<Shared>,
    manifest_json: Option<Vec<u8>>,
    offline: Option<HttpError>,
}

/// What readers ahead need too.
#[derive(Debug)]
pub(crate) struct Shared {
    client: Client,
    folder: String,
    pub(crate) cache: Cache,
    pub(crate) manifest: Option<Packlight>,
    pub(crate) queue: Queue,
    /// Hashes of chunks that are in the cache and were compared.
    ready: Mutex<BTreeSet<String>>,
}

impl Remote {
    /// Asks for packlight.json, or for whether it is still the one that is known.
    ///
    /// Where the host cannot be reached, the one that is known will do; see [`Remote::offline`].
    pub fn open(client: Client, folder: String, cache: Cache) -> Result<Self, HttpError> {
        let known = cache.bundle(&folder);
        let known = known.and_then(|entry| Some((cache.verified(&entry.sha256)?, entry)));
        let etag = known.as_ref().and_then(|(_, entry)| entry.etag.as_deref());
        let (json, offline) = match ask(&client, &folder, etag) {
            Ok(Answer::Same) => (known.map(|(json, _)| json), None),
            Ok(Answer::None) => (None, None),
            Ok(Answer::New { json, etag }) => {
                // What is no manifest is not remembered.
                Packlight::parse(&json)?;
                let entry = BundleEntry { url: folder.clone(), etag, sha256: sha256(&json) };
                cache.keep(&entry.sha256, &json)?;
                cache.keep_bundle(&entry)?;
                (Some(json), None)
            }
            Err(error) if error.is_offline() && known.is_some() => {
                (known.map(|(json, _)| json), Some(error))
            }
            Err(error) => return Err(error),
        };
        let manifest = json.as_deref().map(Packlight::parse).transpose()?;
        let (queue, ready) = (Queue::default(), Mutex::default());
        let shared = Arc::new(Shared { client, folder, cache, manifest, queue, ready });
        Ok(Self { shared, manifest_json: json, offline })
    }

    /// Why the manifest is the one that was known before, where it is.
    pub fn offline(&self) -> Option<&HttpError> {
        self.offline.as_ref()
    }

    /// A whole file; `None` where there is none of that name.
    pub fn file(&self, path: &str) -> Result<Option<Vec<u8>>, HttpError> {
        match &self.shared.manifest {
            Some(_) if path == PACKLIGHT => Ok(self.manifest_json.clone()),
            Some(manifest) => {
                let Some(file) = manifest.file(path) else { return Ok(None) };
                self.range(path, 0..file.bytes).map(Some)
            }
            // Without a manifest nothing is known of a file but its name.
            None if path == PACKLIGHT => Ok(None),
            None => self.shared.unlisted(path),
        }
    }

    /// Some bytes of a file.
    pub fn range(&self, path: &str, range: Range<u64>) -> Result<Vec<u8>, HttpError> {
        let shared = &self.shared;
        let listed = shared
            .manifest
            .as_ref()
            .and_then(|manifest| Some((manifest.file(path)?, manifest.chunk_bytes)));
        let Some((file, chunk_bytes)) = listed else { return shared.unverified(path, range) };
        let mut bytes = Vec::new();
        for (i, (span, hash)) in file.chunks(chunk_bytes).enumerate() {
            let (start, end) = (range.start.max(span.start), range.end.min(span.end));
            if start < end {
                bytes.extend(shared.chunk(file, i, hash, start - span.start..end - span.start)?);
            }
        }
        if (bytes.len() as u64) < range.end - range.start {
            let (found, expected) = (file.bytes, range.end);
            return Err(HttpError::Length { url: shared.url(path), found, expected });
        }
        Ok(bytes)
    }
}

enum Answer {
    /// As the ETag says.
    Same,
    New {
        json: Vec<u8>,
        etag: Option<String>,
    },
    /// There is no such file.
    None,
}

fn ask(client: &Client, folder: &str, etag: Option<&str>) -> Result<Answer, HttpError> {
    let url = format!("{folder}{PACKLIGHT}");
    let mut headers: Vec<Header> = vec![(header::ACCEPT_ENCODING, "identity".into())];
    headers.extend(etag.map(|etag| (header::IF_NONE_MATCH, etag.into())));
    let (json, reply) = match client.small(&url, &headers, MAX_SMALL) {
        Ok(answer) => answer,
        Err(HttpError::Missing { .. }) => return Ok(Answer::None),
        Err(error) => return Err(error),
    };
    if reply.status == 304 {
        return Ok(Answer::Same);
    }
    if is_html(&reply) || json.trim_ascii_start().starts_with(b"<") {
        return Err(HttpError::Html { url });
    }
    Ok(Answer::New { json, etag: text(&reply.headers, &header::ETAG).map(str::to_owned) })
}

impl Shared {
    fn url(&self, path: &str) -> String {
        format!("{}{}", self.folder, encode(path))
    }

    pub(crate) fn ready(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.ready.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Bytes of a chunk, counted from its beginning, once it is in the cache.
    fn chunk(
        &self,
        file: &File,
        i: usize,
        hash: &str,
        part: Range<u64>,
    ) -> Result<Vec<u8>, HttpError> {
        loop {
            if !self.ready().contains(hash) {
                self.queue.wait(&file.path, || self.ready().contains(hash))?;
            }
            if !self.ready().contains(hash) {
                self.obtain(file, i..i + 1, || false)?;
            }
            if let Some(bytes) = self.cache.read(hash, part.clone()) {
                return Ok(bytes);
            }
            // Evicted by another process since it was compared.
            self.ready().remove(hash);
        }
    }

    /// Sees to it that chunks of a file are in the cache and were compared, until told to stop.
    pub(crate) fn obtain(
        &self,
        file: &File,
        wanted: Range<usize>,
        stop: impl Fn() -> bool,
    ) -> Result<(), HttpError> {
        let Some(manifest) = &self.manifest else { return Ok(()) };
        let chunks: Vec<(Range<u64>, &str)> =
            file.chunks(manifest.chunk_bytes).take(wanted.end).collect();
        let end = chunks.last().map_or(0, |(span, _)| span.end);
        let mut stream = None;
        for (span, hash) in chunks.into_iter().skip(wanted.start) {
            if stop() {
                break;
            }
            if self.ready().contains(hash) || self.cache.verified(hash).is_some() {
                // What follows has to be asked for anew.
                stream = None;
            } else {
                let bytes = self.receive(&mut stream, file, span, end, hash)?;
                self.cache.keep(hash, &bytes)?;
            }
            self.ready().insert(hash.to_owned());
            self.queue.notify();
        }
        Ok(())
    }

    /// A chunk off the network, from a stream that goes on to `end`.
    fn receive<'a>(
        &'a self,
        stream: &mut Option<Stream<'a>>,
        file: &File,
        span: Range<u64>,
        end: u64,
        hash: &str,
    ) -> Result<Vec<u8>, HttpError> {
        let mut bytes = vec![0; usize::try_from(span.end - span.start).unwrap_or(usize::MAX)];
        // A bit may flip on the way; twice is no accident.
        for _ in 0..2 {
            let mut connected = match stream.take() {
                Some(stream) => stream,
                None => self.stream(file, span.start..end)?,
            };
            connected.fill(&mut bytes)?;
            if sha256(&bytes) == hash {
                *stream = Some(connected);
                return Ok(bytes);
            }
        }
        Err(HttpError::Chunk { url: self.url(&file.path), start: span.start, end: span.end })
    }

    fn stream(&self, file: &File, range: Range<u64>) -> Result<Stream<'_>, HttpError> {
        Stream::open(&self.client, self.url(&file.path), range, Some(file.bytes))
    }

    /// A file of a bundle that has no manifest of ours.
    fn unlisted(&self, path: &str) -> Result<Option<Vec<u8>>, HttpError> {
        let url = self.url(path);
        match self.client.small(&url, &[(header::ACCEPT_ENCODING, "identity".into())], MAX_SMALL) {
            Ok((_, reply)) if is_html(&reply) => Err(HttpError::Html { url }),
            Ok((bytes, _)) => Ok(Some(bytes)),
            Err(HttpError::Missing { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Bytes without a hash: the caller gets them as they come, and nothing keeps them.
    fn unverified(&self, path: &str, range: Range<u64>) -> Result<Vec<u8>, HttpError> {
        let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap_or(usize::MAX)];
        Stream::open(&self.client, self.url(path), range, None)?.fill(&mut bytes)?;
        Ok(bytes)
    }
}
