//! What a page on another origin would meet at a bundle's address.

mod checks;
mod hosts;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use packlight_formats::manifest::packlight::PACKLIGHT;
use packlight_formats::manifest::tensor_cache::TENSOR_CACHE;
use packlight_formats::manifest::{File, HEADERS, Packlight, TensorCache};
use ureq::http::{HeaderMap, HeaderName, Method, header};

use crate::address::encode;
use crate::client::{Client, Header, is_html};
use crate::error::HttpError;
use crate::read_ahead::CONNECTIONS;
use crate::remote::MAX_SMALL;
use hosts::Host;

/// The page that would read the bundle.
const PAGE: &str = "https://page.example";
/// What browsers accept.
const ENCODINGS: &str = "gzip, deflate, br, zstd";

/// Everything that was looked at.
#[derive(Debug, serde::Serialize)]
pub struct Report {
    /// The folder.
    pub url: String,
    /// What kind of host it is.
    pub host: &'static str,
    /// In the order of a download.
    pub checks: Vec<Check>,
}

/// One thing that was looked at.
#[derive(Debug, serde::Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// How it is.
    pub status: Status,
    /// What was found.
    pub found: String,
    /// What to do about it, where something should be done.
    pub fix: Option<String>,
}

/// How something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should be.
    Pass,
    /// It works, but not for everyone or not well.
    Warn,
    /// A page on another origin cannot use the bundle.
    Fail,
}

impl Report {
    /// Whether a page can use the bundle.
    pub fn ok(&self) -> bool {
        self.checks.iter().all(|check| check.status != Status::Fail)
    }
}

/// An answer without its body.
struct Answer {
    status: u16,
    headers: HeaderMap,
    hops: Vec<String>,
    html: bool,
}

/// What was found out before the checks.
struct Findings {
    url: String,
    host: &'static Host,
    /// From packlight.json, or from tensor-cache.json where there is none of ours.
    files: Vec<File>,
    ours: bool,
    /// packlight.json, as a page gets it.
    manifest: Answer,
    /// The largest file: path, and how a page gets it, its first byte, and leave to ask for that.
    weights: Option<(String, Answer)>,
    first_byte: Option<Answer>,
    preflight: Option<Answer>,
    /// The head of each file, or why there is none.
    heads: Vec<Result<Answer, String>>,
}

/// Looks at a bundle as a page on another origin would, which has no token.
///
/// An error means that there is nothing to look at: no host, or neither manifest.
pub fn probe(client: Client, folder: &str) -> Result<Report, HttpError> {
    let client = &client.anonymous();
    let (name, files, ours) = manifest(client, folder).map_err(|error| match error {
        // Not even on the hub would setting a token help.
        HttpError::Denied { url, status, .. } => HttpError::Denied { url, status, hub: false },
        error => error,
    })?;
    let manifest = ask(client, &Method::GET, &format!("{folder}{name}"), &[])?;
    let largest = files.iter().max_by_key(|file| file.bytes).map(|file| file.path.clone());
    let (mut weights, mut first_byte, mut preflight) = (None, None, None);
    if let Some(path) = largest {
        let url = format!("{folder}{}", encode(&path));
        first_byte = ask(client, &Method::GET, &url, &[(header::RANGE, "bytes=0-0".into())]).ok();
        let wants = [
            (header::ACCESS_CONTROL_REQUEST_METHOD, "GET".into()),
            (header::ACCESS_CONTROL_REQUEST_HEADERS, "range".into()),
        ];
        preflight = ask(client, &Method::OPTIONS, &url, &wants).ok();
        weights = ask(client, &Method::GET, &url, &[]).ok().map(|answer| (path, answer));
    }
    let heads = heads(client, folder, &files);
    let (url, host) = (folder.to_owned(), Host::of(folder));
    let findings =
        Findings { url, host, files, ours, manifest, weights, first_byte, preflight, heads };
    Ok(Report { checks: checks::all(&findings), url: findings.url, host: host.name })
}

/// The manifest's name, and the files it lists.
fn manifest(client: &Client, folder: &str) -> Result<(&'static str, Vec<File>, bool), HttpError> {
    let get = |name: &str| {
        let url = format!("{folder}{name}");
        let headers = [(header::ACCEPT_ENCODING, "identity".into())];
        let (json, reply) = client.small(&url, &headers, MAX_SMALL)?;
        if is_html(&reply) { Err(HttpError::Html { url }) } else { Ok(json) }
    };
    match get(PACKLIGHT) {
        Ok(json) => {
            let mut files = Packlight::parse(&json)?.files;
            // For the host, which does not serve it.
            files.retain(|file| file.path != HEADERS);
            Ok((PACKLIGHT, files, true))
        }
        Err(missing @ HttpError::Missing { .. }) => {
            let json = get(TENSOR_CACHE).map_err(|error| match error {
                HttpError::Missing { .. } => missing,
                error => error,
            })?;
            let shards = TensorCache::parse(&json)?.records.into_iter();
            let file = |(path, bytes)| File {
                path,
                bytes,
                media_type: "application/octet-stream".into(),
                sha256: Vec::new(),
                holds: None,
                alias_of: None,
            };
            let files = shards.map(|shard| file((shard.data_path, shard.nbytes))).collect();
            Ok((TENSOR_CACHE, files, false))
        }
        Err(error) => Err(error),
    }
}

/// The head of an answer to what a page would ask. Its body is not read.
fn ask(
    client: &Client,
    method: &Method,
    url: &str,
    more: &[(HeaderName, String)],
) -> Result<Answer, HttpError> {
    let mut headers: Vec<Header> =
        vec![(header::ORIGIN, PAGE.into()), (header::ACCEPT_ENCODING, ENCODINGS.into())];
    headers.extend_from_slice(more);
    let reply = client.send(method, url, &headers)?;
    let html = is_html(&reply);
    Ok(Answer { status: reply.status, headers: reply.headers, hops: reply.hops, html })
}

/// The heads of all files, several at a time.
fn heads(client: &Client, folder: &str, files: &[File]) -> Vec<Result<Answer, String>> {
    let (next, heads) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..CONNECTIONS {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(file) = files.get(i) else { break };
                    let head = head(client, &format!("{folder}{}", encode(&file.path)));
                    heads.lock().unwrap_or_else(PoisonError::into_inner).push((i, head));
                }
            });
        }
    });
    let mut heads = heads.into_inner().unwrap_or_else(PoisonError::into_inner);
    heads.sort_by_key(|(i, _)| *i);
    heads.into_iter().map(|(_, head)| head).collect()
}

fn head(client: &Client, url: &str) -> Result<Answer, String> {
    let answer = match ask(client, &Method::HEAD, url, &[]) {
        // Some hosts know GET only.
        Ok(Answer { status: 405 | 501, .. }) => ask(client, &Method::GET, url, &[]),
        answer => answer,
    };
    answer.map_err(|error| error.to_string())
}
