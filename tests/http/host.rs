//! A web server that does what a test tells it to.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use packlight_formats::digest::sha256;

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) method: String,
    pub(super) path: String,
    /// By lower-case name.
    pub(super) headers: BTreeMap<String, String>,
    /// How many requests for this path came before.
    pub(super) nth: usize,
}

impl Asked {
    pub(super) fn is_shard(&self) -> bool {
        self.path.contains("params_shard")
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// What to answer.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    /// As a good server does.
    Honest,
    /// With these headers too.
    With(Vec<(&'static str, String)>),
    /// The right length, but the connection ends after so many bytes of the body.
    Drop(usize),
    /// The right length, but nothing comes after so many bytes of the body.
    Stall(usize),
    /// The last byte of the body is another.
    Flip,
    /// The file has so many bytes fewer, and the headers agree.
    Shorter(usize),
    /// One byte more, and no Content-Length.
    Longer,
    /// As if there were no Range.
    Whole,
    /// A page with status 200.
    Html,
    Status(u16, Vec<(&'static str, String)>),
}

type Files = BTreeMap<String, Vec<u8>>;
type Script = Box<dyn Fn(&Asked) -> Answer + Send + Sync>;

struct Shared {
    files: Files,
    script: Script,
    log: Mutex<Vec<Asked>>,
    connections: AtomicUsize,
    stop: AtomicBool,
}

/// Files under paths, on loopback, until it is dropped.
pub(super) struct Host {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Host {
    pub(super) fn new(
        files: Files,
        script: impl Fn(&Asked) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Self::on(listener, files, script)
    }

    pub(super) fn on(
        listener: TcpListener,
        files: Files,
        script: impl Fn(&Asked) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let address = listener.local_addr().unwrap();
        let (log, connections, stop) = Default::default();
        let script = Box::new(script);
        let shared = Arc::new(Shared { files, script, log, connections, stop });
        let served = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if served.stop.load(Ordering::SeqCst) {
                    break;
                }
                let served = Arc::clone(&served);
                // A client that goes away is no fault of the server.
                std::thread::spawn(move || respond(&served, stream.unwrap()).ok());
            }
        });
        Self { address, shared, thread: Some(thread) }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    pub(super) fn log(&self) -> Vec<Asked> {
        self.shared.log.lock().unwrap().clone()
    }

    pub(super) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// How often shards were asked for.
    pub(super) fn shard_requests(&self) -> usize {
        self.log().iter().filter(|asked| asked.is_shard()).count()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        TcpStream::connect(self.address).ok();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// Answers what comes over a connection until one side ends it.
fn respond(shared: &Shared, stream: TcpStream) -> std::io::Result<()> {
    shared.connections.fetch_add(1, Ordering::SeqCst);
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let mut words = line.split_whitespace();
        let (Some(method), Some(path)) = (words.next(), words.next()) else { return Ok(()) };
        let (method, path) = (method.to_owned(), path.to_owned());
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let asked = {
            let mut log = shared.log.lock().unwrap();
            let nth = log.iter().filter(|before| before.path == path).count();
            let asked = Asked { method, path, headers, nth };
            log.push(asked.clone());
            asked
        };
        let answer = (shared.script)(&asked);
        write(reader.get_mut(), &asked, &answer, shared.files.get(&asked.path))?;
        if matches!(answer, Answer::Drop(_) | Answer::Stall(_) | Answer::Longer) {
            return Ok(());
        }
    }
}

fn write(
    stream: &mut TcpStream,
    asked: &Asked,
    answer: &Answer,
    file: Option<&Vec<u8>>,
) -> std::io::Result<()> {
    let mut head = String::new();
    let mut field = |name: &str, value: &str| write!(head, "{name}: {value}\r\n").unwrap();
    let (mut status, mut body) = match (answer, file) {
        (Answer::Html, _) => {
            field("Content-Type", "text/html; charset=utf-8");
            (200, b"<!doctype html><title>not here</title>".to_vec())
        }
        (Answer::Status(status, headers), _) => {
            for (name, value) in headers {
                field(name, value);
            }
            (*status, b"no".to_vec())
        }
        (_, None) => (404, b"no".to_vec()),
        (_, Some(file)) => (200, file.clone()),
    };
    let sends = file.is_some() && !matches!(answer, Answer::Html | Answer::Status(..));
    if sends {
        match answer {
            Answer::Shorter(less) => body.truncate(body.len() - less),
            Answer::Longer => body.push(0),
            Answer::Flip => *body.last_mut().unwrap() ^= 1,
            Answer::With(headers) => {
                for (name, value) in headers {
                    field(name, value);
                }
            }
            _ => {}
        }
        let etag = format!("\"{}\"", sha256(&body));
        field("ETag", &etag);
        if asked.header("if-none-match") == Some(&etag) {
            status = 304;
            body.clear();
        }
        let ignores = matches!(answer, Answer::Whole | Answer::Longer);
        let range = asked.header("range").filter(|_| !ignores && status == 200);
        if let Some((first, last)) = range.and_then(|r| r.strip_prefix("bytes=")?.split_once('-')) {
            let (first, total) = (first.parse::<usize>().unwrap(), body.len());
            let end = last.parse::<usize>().map_or(total, |last| (last + 1).min(total));
            if first >= end {
                status = 416;
                body.clear();
            } else {
                // A test may send its own.
                if !matches!(answer, Answer::With(own) if own.iter().any(|h| h.0 == "Content-Range"))
                {
                    field("Content-Range", &format!("bytes {first}-{}/{total}", end - 1));
                }
                status = 206;
                body = body[first..end].to_vec();
            }
        }
    }
    if !matches!(answer, Answer::Longer) {
        field("Content-Length", &body.len().to_string());
    }
    let head = format!("HTTP/1.1 {status} Status\r\n{head}\r\n");
    stream.write_all(head.as_bytes())?;
    if asked.method == "HEAD" {
        return Ok(());
    }
    match answer {
        Answer::Drop(bytes) => stream.write_all(&body[..(*bytes).min(body.len())]),
        Answer::Stall(bytes) => {
            stream.write_all(&body[..(*bytes).min(body.len())])?;
            stream.flush()?;
            std::thread::sleep(std::time::Duration::from_secs(2));
            Ok(())
        }
        _ => stream.write_all(&body),
    }
}
