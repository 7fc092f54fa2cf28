//! A checkpoint of the hub becomes a folder in the cache.

use std::collections::BTreeSet;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use packlight_formats::digest::{hex, sha256};
use packlight_formats::file_name::is_file_name;
use packlight_formats::safetensors::parse_index;
use serde::{Deserialize, Serialize};
use sha1::Sha1;
use sha2::{Digest as _, Sha256};
use ureq::http::header;

use crate::address::{Hub, Repository, encode};
use crate::cache::{Cache, read_json};
use crate::client::{Client, text};
use crate::error::HttpError;
use crate::read_ahead::CONNECTIONS;
use crate::stream::Stream;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Extension of a file that grows. Who writes into one has locked it.
pub(crate) const PARTIAL: &str = "partial";
/// A listing is a thousand files a page; a checkpoint's folder has tens.
const MAX_LISTING: u64 = 16 << 20;
const MAX_PAGES: usize = 20;

/// What a revision was when it was last downloaded.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Listing {
    /// `hf://owner/name@revision`.
    pub(crate) address: String,
    id: String,
    commit: String,
    files: Vec<Listed>,
}

/// A file of a commit.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Listed {
    path: String,
    bytes: u64,
    hash: Hash,
}

/// How git names the bytes of a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Hash {
    /// Of a blob: SHA-1 of `blob <bytes>\0` and the file.
    Git(String),
    /// Of a large file: its SHA-256.
    Lfs(String),
}

/// An entry of the hub's answer.
#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    oid: String,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

/// How a download is going.
pub trait Progress: Sync {
    /// So many bytes are needed in all.
    fn total(&self, bytes: u64);
    /// So many more are there.
    fn add(&self, bytes: u64);
}

/// Downloads what a converter reads of a checkpoint (`sidecars` beside config and weights) and returns its folder.
///
/// Where the hub cannot be reached, a folder that was completed before will do: the error then says why.
pub fn download(
    client: &Client,
    cache: &Cache,
    repository: &Repository,
    sidecars: &[&str],
    progress: &dyn Progress,
) -> Result<(PathBuf, Option<HttpError>), HttpError> {
    let address = repository.to_string();
    let key = format!(
        "{}.json",
        sha256(client.hub().folder(&repository.id, &repository.revision).as_bytes())
    );
    let entry = cache.checkpoints().join(key);
    let (listing, offline) = match list(client, repository) {
        Ok(listing) => (listing, None),
        Err(error) if error.is_offline() => match read_json::<Listing>(&entry) {
            Some(listing) => (listing, Some(error)),
            None => return Err(error),
        },
        Err(error) => return Err(error),
    };
    let folder = listing.folder(cache);
    fs_err::create_dir_all(&folder).map_err(|error| HttpError::cache(&folder, error))?;
    let job = Job { client, listing: &listing, folder: &folder, progress };
    let (first, weights) = job.first(&address, sidecars)?;
    progress.total(first.iter().map(|file| file.bytes).fold(0, u64::saturating_add));
    cache.require(job.missing(&first))?;
    job.fetch(&first)?;
    if let Some(index) = weights {
        let rest = job.weights(&address, index)?;
        let all = first.iter().chain(&rest).map(|file| file.bytes).sum();
        progress.total(all);
        cache.require(job.missing(&rest))?;
        job.fetch(&rest)?;
    }
    // Until all of a commit is here, the one that was known before is what will do without a network.
    cache.write_json(&entry, &listing)?;
    Ok((folder, offline))
}

/// What the hub has: the commit of a revision, and the files at its root.
fn list(client: &Client, repository: &Repository) -> Result<Listing, HttpError> {
    #[derive(Deserialize)]
    struct Revision {
        sha: String,
    }
    let Repository { id, revision } = repository;
    let hub: &Hub = client.hub();
    let url = hub.api(id, "revision", revision);
    let (json, _) = client.small(&url, &[], MAX_LISTING).map_err(|error| match error {
        HttpError::Missing { .. } => HttpError::Repository { repository: repository.to_string() },
        error => error,
    })?;
    let Revision { sha: commit } = parse(&url, &json)?;
    if commit.is_empty() || !commit.bytes().all(|b| b.is_ascii_alphanumeric()) {
        let reason = format!("`{commit}` is not a commit");
        return Err(HttpError::Unexpected { url, reason });
    }
    let mut files = Vec::new();
    let mut next = Some(hub.api(id, "tree", &commit));
    for _ in 0..MAX_PAGES {
        let Some(url) = next.take() else { break };
        let (json, reply) = client.small(&url, &[], MAX_LISTING)?;
        let entries: Vec<Entry> = parse(&url, &json)?;
        let usable = |entry: &Entry| entry.kind == "file" && is_file_name(&entry.path);
        files.extend(entries.into_iter().filter(usable).map(Listed::from));
        // Only the hub itself is asked for more.
        next = text(&reply.headers, &header::LINK).and_then(next_page).filter(|url| hub.owns(url));
    }
    Ok(Listing { address: repository.to_string(), id: id.clone(), commit, files })
}

fn parse<T: serde::de::DeserializeOwned>(url: &str, json: &[u8]) -> Result<T, HttpError> {
    serde_json::from_slice(json).map_err(|error| {
        let reason = format!("the hub's answer is not understood: {error}");
        HttpError::Unexpected { url: url.into(), reason }
    })
}

/// `<https://...>; rel="next"`.
fn next_page(link: &str) -> Option<String> {
    let links = link.split(',').filter_map(|link| link.trim().strip_prefix('<')?.split_once('>'));
    let mut next = links.filter(|(_, rest)| rest.contains("rel=\"next\""));
    next.next().map(|(url, _)| url.to_owned())
}

impl From<Entry> for Listed {
    fn from(Entry { path, size, oid, lfs, .. }: Entry) -> Self {
        match lfs {
            Some(lfs) => Self { path, bytes: lfs.size, hash: Hash::Lfs(lfs.oid) },
            None => Self { path, bytes: size, hash: Hash::Git(oid) },
        }
    }
}

impl Listing {
    /// Where its files are kept: a commit never changes.
    pub(crate) fn folder(&self, cache: &Cache) -> PathBuf {
        cache.checkpoints().join(self.id.replace('/', "--")).join(&self.commit)
    }

    /// The address of the commit that such a folder keeps.
    pub(crate) fn address_of(folder: &Path) -> Option<String> {
        let id = folder.parent()?.file_name()?.to_str()?.replacen("--", "/", 1);
        Some(format!("hf://{id}@{}", folder.file_name()?.to_str()?))
    }

    fn file(&self, path: &str) -> Option<&Listed> {
        self.files.iter().find(|file| file.path == path)
    }
}

struct Job<'a> {
    client: &'a Client,
    listing: &'a Listing,
    folder: &'a Path,
    progress: &'a dyn Progress,
}

impl<'a> Job<'a> {
    /// All files but those that only the index names; and the index, if there is one.
    fn first(
        &self,
        address: &str,
        sidecars: &[&str],
    ) -> Result<(Vec<&'a Listed>, Option<&'a Listed>), HttpError> {
        let file = |name: &str| self.listing.file(name);
        let fault =
            |reason: String| Err(HttpError::Checkpoint { repository: address.to_owned(), reason });
        let Some(config) = file("config.json") else {
            return fault("it has no config.json".into());
        };
        let index = file(INDEX);
        let Some(weights) = index.or(file(SINGLE)) else {
            let names: Vec<&str> = self.listing.files.iter().map(|file| &*file.path).collect();
            return fault(format!("it has no {SINGLE}, but {}", names.join(", ")));
        };
        let sidecars = sidecars.iter().filter_map(|name| file(name));
        Ok(([config, weights].into_iter().chain(sidecars).collect(), index))
    }

    /// The files that the index names.
    fn weights(&self, address: &str, index: &Listed) -> Result<Vec<&'a Listed>, HttpError> {
        let path = self.folder.join(&index.path);
        let json = fs_err::read(&path).map_err(|error| HttpError::cache(&path, error))?;
        let fault = |reason| HttpError::Checkpoint { repository: address.to_owned(), reason };
        let named = parse_index(INDEX, &json).map_err(|error| fault(error.to_string()))?;
        let names: BTreeSet<String> = named.into_iter().map(|(_, file)| file).collect();
        let listed = |name: &String| {
            self.listing
                .file(name)
                .ok_or_else(|| fault(format!("`{name}` of its index is missing")))
        };
        names.iter().map(listed).collect()
    }

    /// Bytes that no earlier run has downloaded.
    fn missing(&self, files: &[&Listed]) -> u64 {
        let held = |name: &str| {
            fs_err::metadata(self.folder.join(name)).map_or(0, |metadata| metadata.len())
        };
        let missing = |file: &&Listed| {
            let held = held(&file.path).max(held(&partial(&file.path)));
            file.bytes.saturating_sub(held)
        };
        files.iter().map(missing).fold(0, u64::saturating_add)
    }

    /// Several files at once.
    fn fetch(&self, files: &[&Listed]) -> Result<(), HttpError> {
        let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
        std::thread::scope(|scope| {
            for _ in 0..CONNECTIONS.min(files.len()) {
                scope.spawn(|| {
                    while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if let Err(error) = self.file(file) {
                            // The others finish what they have begun.
                            next.store(files.len(), Ordering::Relaxed);
                            *failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner) =
                                Some(error);
                        }
                    }
                });
            }
        });
        let failed = failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        failed.map_or(Ok(()), Err)
    }

    /// One file: what an earlier run left of it is hashed, the rest is downloaded.
    fn file(&self, file: &Listed) -> Result<(), HttpError> {
        let path = self.folder.join(&file.path);
        let io = |error| HttpError::cache(&path, error);
        if fs_err::metadata(&path).is_ok_and(|metadata| metadata.len() == file.bytes) {
            self.progress.add(file.bytes);
            return Ok(());
        }
        let partial = self.folder.join(partial(&file.path));
        let options = fs_err::OpenOptions::new().read(true).write(true).create(true).open(&partial);
        let mut output = options.map_err(io)?;
        // Another process that downloads the same file is waited for.
        output.file().lock().map_err(io)?;
        if fs_err::metadata(&path).is_ok_and(|metadata| metadata.len() == file.bytes) {
            // Where it was renamed between looking and opening, opening has made an empty one.
            fs_err::remove_file(&partial).ok();
            self.progress.add(file.bytes);
            return Ok(());
        }
        let mut hasher = Hasher::new(file);
        let held = output.file().metadata().map_err(io)?.len();
        let mut at = 0;
        let mut buffer = vec![0; 1 << 20];
        if held <= file.bytes {
            while at < held {
                let n = output.read(&mut buffer).map_err(io)?;
                hasher.update(&buffer[..n]);
                at += n as u64;
            }
        }
        output.file().set_len(at).map_err(io)?;
        output.seek(SeekFrom::Start(at)).map_err(io)?;
        self.progress.add(at);
        if at < file.bytes {
            let base = self.client.hub().folder(&self.listing.id, &self.listing.commit);
            let url = format!("{base}{}", encode(&file.path));
            let mut stream = Stream::open(self.client, url, at..file.bytes, Some(file.bytes))?;
            loop {
                let n = stream.next(&mut buffer)?;
                if n == 0 {
                    break;
                }
                hasher.update(&buffer[..n]);
                output.write_all(&buffer[..n]).map_err(io)?;
                self.progress.add(n as u64);
            }
        }
        if !hasher.matches(&file.hash) {
            fs_err::remove_file(&partial).map_err(io)?;
            let url = format!("{}/{}", self.listing.address, file.path);
            return Err(HttpError::Hash { url });
        }
        output.sync_all().map_err(io)?;
        fs_err::rename(&partial, &path).map_err(io)
    }
}

/// Under this name a file grows.
fn partial(name: &str) -> String {
    format!("{name}.{PARTIAL}")
}

enum Hasher {
    Git(Sha1),
    Lfs(Sha256),
}

impl Hasher {
    fn new(file: &Listed) -> Self {
        match file.hash {
            Hash::Git(_) => {
                Self::Git(Sha1::new_with_prefix(format!("blob {}\0", file.bytes).as_bytes()))
            }
            Hash::Lfs(_) => Self::Lfs(Sha256::new()),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Git(sha1) => sha1.update(bytes),
            Self::Lfs(sha256) => sha256.update(bytes),
        }
    }

    fn matches(self, expected: &Hash) -> bool {
        match (self, expected) {
            (Self::Git(sha1), Hash::Git(expected)) => hex(&sha1.finalize()) == *expected,
            (Self::Lfs(sha256), Hash::Lfs(expected)) => hex(&sha256.finalize()) == *expected,
            _ => false,
        }
    }
}
