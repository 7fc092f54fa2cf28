//! A bundle on loopback, as a good host would serve it.

mod connection;
mod listed;

use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use packlight_formats::manifest::ManifestError;
use percent_encoding::percent_decode_str;

use self::connection::{Answer, Request, converse};
use self::listed::listed;

/// Connections at once; further ones wait. A browser has six, and some more for pages on other origins.
const THREADS: usize = 32;
/// After the system has refused a connection, for example because too many files are open.
const PAUSE: Duration = Duration::from_millis(50);

/// Why a bundle cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("`{}` is not a folder", .0.display())]
    NotAFolder(PathBuf),
    #[error("`{}` holds no bundle: it has neither packlight.json nor tensor-cache.json", .0.display())]
    NoBundle(PathBuf),
    #[error("`{}` cannot be served: {source}", .folder.display())]
    Manifest { folder: PathBuf, source: ManifestError },
    #[error(transparent)]
    Unreadable(io::Error),
    #[error("port {port} cannot be opened: {reason}")]
    Port { port: u16, reason: String },
}

impl ServeError {
    /// What the user can do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::NotAFolder(_) | Self::NoBundle(_) => {
                "give the folder that `packlight convert -o` wrote: only a bundle's own files are served".into()
            }
            Self::Manifest { .. } => {
                "the bundle is damaged or was changed by hand: convert it again".into()
            }
            Self::Unreadable(_) => "its manifest must be a file that you may read".into(),
            Self::Port { .. } => {
                "choose another with --port, or --port 0 for any that is free".into()
            }
        }
    }
}

/// A file of a page that is served beside the folder's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageFile {
    /// `index.html` or `page/main.js`: without a slash at its beginning.
    pub path: String,
    pub media_type: &'static str,
    pub bytes: Vec<u8>,
}

/// A server of one bundle's files, for this machine only.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    folder: PathBuf,
    sidecars: Vec<&'static str>,
    /// What a file of that name is to be called.
    media_type: fn(&str) -> &'static str,
    page: Vec<PageFile>,
}

impl Server {
    /// Listens on a port of 127.0.0.1; 0 is any that is free. `sidecars` are what a bundle without packlight.json may
    /// have beside its manifests and shards.
    pub fn bind(
        folder: &Path,
        port: u16,
        sidecars: Vec<&'static str>,
        media_type: fn(&str) -> &'static str,
    ) -> Result<Self, ServeError> {
        if !folder.is_dir() {
            return Err(ServeError::NotAFolder(folder.into()));
        }
        listed(folder, &sidecars)?;
        let folder = folder.to_owned();
        let busy = |error: io::Error| ServeError::Port { port, reason: error.to_string() };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(busy)?;
        let address = listener.local_addr().map_err(busy)?;
        Ok(Self { listener, address, folder, sidecars, media_type, page: Vec::new() })
    }

    /// With a page, whose `index.html` is what the address itself shows.
    #[must_use]
    pub fn with_page(self, page: Vec<PageFile>) -> Self {
        Self { page, ..self }
    }

    /// Where it listens, as a URL.
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Answers until the process ends.
    pub fn run(&self) {
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    loop {
                        match self.listener.accept() {
                            // The client is gone: nobody is left to be told.
                            Ok((stream, _)) => drop(converse(stream, |asked| self.respond(asked))),
                            Err(_) => std::thread::sleep(PAUSE),
                        }
                    }
                });
            }
        });
    }

    fn respond(&self, request: &Request) -> Answer {
        match request.method.as_str() {
            "OPTIONS" => preflight(),
            "GET" | "HEAD" => match (self.open(&request.target), self.shown(&request.target)) {
                (Some(file), _) => {
                    self.send(request, file).unwrap_or_else(|_| plain(500, "it cannot be read"))
                }
                (None, Some(file)) => page(file),
                (None, None) => plain(404, "the bundle has no such file"),
            },
            _ => plain(405, "only GET, HEAD and OPTIONS").with("Allow", METHODS),
        }
    }

    /// The file of the page that a request is for.
    fn shown(&self, url: &str) -> Option<&PageFile> {
        let path = url.split(['?', '#']).next().unwrap_or_default().strip_prefix('/')?;
        let index = path.is_empty() || path.ends_with('/');
        self.page.iter().find(|file| {
            if index {
                file.path.strip_prefix(path) == Some("index.html")
            } else {
                file.path == path
            }
        })
    }

    /// The file of a request, if it is one of the bundle's own.
    fn open(&self, url: &str) -> Option<(String, fs_err::File)> {
        let path = url.split(['?', '#']).next().unwrap_or_default().strip_prefix('/')?;
        // WebLLM looks for the files of any address below this.
        let path = path.strip_prefix("resolve/main/").unwrap_or(path);
        let name = percent_decode_str(path).decode_utf8().ok()?.into_owned();
        // Read anew, because the bundle may be another by now. A listed name leads to nothing outside the folder unless
        // it is a link there, as all files are in the hub's cache.
        let is_listed = listed(&self.folder, &self.sidecars).ok()?.contains(&name);
        let path = Some(self.folder.join(&name)).filter(|path| is_listed && path.is_file())?;
        Some((name, fs_err::File::open(path).ok()?))
    }

    fn send(
        &self,
        request: &Request,
        (name, mut file): (String, fs_err::File),
    ) -> io::Result<Answer> {
        let metadata = file.metadata()?;
        let (bytes, etag) = (metadata.len(), etag(&metadata));
        let known =
            request.header("If-None-Match").is_some_and(|tags| tags == "*" || tags.contains(&etag));
        let same = request.header("If-Range").is_none_or(|tag| tag == etag);
        let range = request.header("Range").filter(|_| same);
        let range = range.and_then(|range| parse_range(range, bytes));
        let (status, start, length) = match range {
            _ if known => (304, 0, 0),
            None => (200, 0, bytes),
            Some(Ok((start, end))) => (206, start, end - start),
            Some(Err(())) => (416, 0, 0),
        };
        file.seek(SeekFrom::Start(start))?;
        let answer = answer(status, file.take(length), length)
            .with("ETag", etag)
            // For trying things out: what changes is seen at once.
            .with("Cache-Control", "no-cache")
            .with("Accept-Ranges", "bytes")
            .with("Content-Type", (self.media_type)(&name));
        Ok(match status {
            206 => {
                let last = start + length - 1;
                answer.with("Content-Range", format!("bytes {start}-{last}/{bytes}"))
            }
            416 => answer.with("Content-Range", format!("bytes */{bytes}")),
            _ => answer,
        })
    }
}

const METHODS: &str = "GET, HEAD, OPTIONS";

fn preflight() -> Answer {
    answer(204, io::empty(), 0)
        .with("Access-Control-Allow-Methods", METHODS)
        .with("Access-Control-Allow-Headers", "Range, If-Range, If-None-Match, Cache-Control")
        .with("Access-Control-Max-Age", "86400")
        // Chromium asks whether a public page may reach this machine.
        .with("Access-Control-Allow-Private-Network", "true")
}

fn page(file: &PageFile) -> Answer {
    let length = file.bytes.len() as u64;
    answer(200, io::Cursor::new(file.bytes.clone()), length)
        .with("Cache-Control", "no-cache")
        .with("Content-Type", file.media_type)
}

fn plain(status: u16, text: &'static str) -> Answer {
    answer(status, text.as_bytes(), text.len() as u64)
        .with("Content-Type", "text/plain; charset=utf-8")
}

/// An answer that any origin may read.
fn answer(status: u16, body: impl io::Read + 'static, length: u64) -> Answer {
    Answer::new(status, body, length)
        .with("Access-Control-Allow-Origin", "*")
        .with("Access-Control-Expose-Headers", "Accept-Ranges, Content-Length, Content-Range, ETag")
        .with("Cross-Origin-Resource-Policy", "cross-origin")
        .with("X-Content-Type-Options", "nosniff")
}

/// Size and time of the last change, as other file servers do.
fn etag(metadata: &std::fs::Metadata) -> String {
    let changed = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    let since = changed.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    format!("\"{:x}-{:x}\"", since.as_nanos(), metadata.len())
}

/// One range as first byte and end; an error where no byte of it exists. Several, or nonsense, ask for the whole file.
fn parse_range(value: &str, bytes: u64) -> Option<Result<(u64, u64), ()>> {
    let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
    // Rust reads `+1` as a number, too.
    let is_number = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if !is_number(first) || !is_number(last) {
        return None;
    }
    let (start, end) = match (first.parse::<u64>().ok(), last.parse::<u64>().ok()) {
        (Some(first), Some(last)) if first <= last => (first, last.saturating_add(1).min(bytes)),
        (Some(first), None) if last.is_empty() => (first, bytes),
        (None, Some(length)) if first.is_empty() => (bytes - length.min(bytes), bytes),
        _ => return None,
    };
    Some(if start < end { Ok((start, end)) } else { Err(()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read() {
        let read = |value| parse_range(value, 100);
        assert_eq!(read("bytes=0-0"), Some(Ok((0, 1))));
        assert_eq!(read("bytes=90-"), Some(Ok((90, 100))));
        assert_eq!(read("bytes=-10"), Some(Ok((90, 100))));
        assert_eq!(read("bytes=-1000"), Some(Ok((0, 100))));
        assert_eq!(read("bytes=50-18446744073709551615"), Some(Ok((50, 100))));
        for unsatisfiable in ["bytes=100-", "bytes=100-200", "bytes=-0"] {
            assert_eq!(read(unsatisfiable), Some(Err(())), "{unsatisfiable}");
        }
        for whole in [
            "bytes=0-1,5-6",
            "bytes=5-1",
            "lines=0-1",
            "bytes=-",
            "bytes=a-b",
            "bytes=+1-2",
            "bytes=1-+2",
            "bytes=-+2",
        ] {
            assert_eq!(read(whole), None, "{whole}");
        }
    }
}
