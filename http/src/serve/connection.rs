//! HTTP/1.1 as far as a server of files needs it: heads of requests in, answers of known length out.

use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::net::TcpStream;
use std::time::{Duration, SystemTime};

/// Longer heads are not read; those of browsers have a few hundred bytes.
const MAX_HEAD: u64 = 16 << 10;
const MAX_HEADERS: usize = 64;
/// A connection that is not used makes room for another.
const IDLE: Duration = Duration::from_secs(5);
/// So long a client may take none of what it asked for.
const STALLED: Duration = Duration::from_secs(30);

/// What is no request is told so.
const NONSENSE: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// What a client asks.
pub(super) struct Request {
    pub(super) method: String,
    /// A path, as it was sent.
    pub(super) target: String,
    headers: Vec<(String, String)>,
    closes: bool,
}

impl Request {
    /// The value of a header.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(field, _)| field.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

/// What it gets.
pub(super) struct Answer {
    pub(super) status: u16,
    headers: Vec<(&'static str, String)>,
    body: Box<dyn Read>,
    length: u64,
}

impl Answer {
    pub(super) fn new(status: u16, body: impl Read + 'static, length: u64) -> Self {
        Self { status, headers: Vec::new(), body: Box::new(body), length }
    }

    pub(super) fn with(mut self, field: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((field, value.into()));
        self
    }
}

/// Answers what comes over a connection until one side ends it.
pub(super) fn converse(stream: TcpStream, respond: impl Fn(&Request) -> Answer) -> io::Result<()> {
    stream.set_read_timeout(Some(IDLE))?;
    stream.set_write_timeout(Some(STALLED))?;
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    while let Some(head) = read_head(&mut reader)? {
        let Some(request) = parse(&head) else {
            return reader.get_mut().write_all(NONSENSE);
        };
        let answer = respond(&request);
        write(reader.get_mut(), &request, answer)?;
        if request.closes {
            break;
        }
    }
    Ok(())
}

/// The lines up to the empty one; `None` where the client has no more to ask.
fn read_head(reader: &mut BufReader<TcpStream>) -> io::Result<Option<Vec<u8>>> {
    let mut head = Vec::new();
    let mut limited = reader.take(MAX_HEAD);
    loop {
        if limited.read_until(b'\n', &mut head)? == 0 {
            let whole = head.is_empty();
            return if whole { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
        if head.ends_with(b"\r\n\r\n") {
            return Ok(Some(head));
        }
    }
}

fn parse(head: &[u8]) -> Option<Request> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    if !parsed.parse(head).ok()?.is_complete() {
        return None;
    }
    let text = |header: &httparse::Header<'_>| {
        (header.name.to_owned(), String::from_utf8_lossy(header.value).into_owned())
    };
    let mut request = Request {
        method: parsed.method?.to_owned(),
        target: parsed.path?.to_owned(),
        headers: parsed.headers.iter().map(text).collect(),
        closes: parsed.version == Some(0),
    };
    let asks = |name, value: &str| {
        request.header(name).is_some_and(|found| found.to_ascii_lowercase().contains(value))
    };
    // A body is not read, so that nothing after it can be, either.
    let body = request.header("Transfer-Encoding").is_some()
        || request.header("Content-Length").is_some_and(|length| length.trim() != "0");
    request.closes = request.closes || body || asks("Connection", "close");
    Some(request)
}

fn write(stream: &mut TcpStream, request: &Request, answer: Answer) -> io::Result<()> {
    let Answer { status, headers, body, length } = answer;
    let mut head = format!("HTTP/1.1 {status} {}\r\n", reason(status));
    let mut field = |name: &str, value: &str| {
        for piece in [name, ": ", value, "\r\n"] {
            head.push_str(piece);
        }
    };
    field("Date", &httpdate::fmt_http_date(SystemTime::now()));
    if !matches!(status, 204 | 304) {
        field("Content-Length", &length.to_string());
    }
    for (name, value) in &headers {
        field(name, value);
    }
    if request.closes {
        field("Connection", "close");
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes())?;
    if request.method != "HEAD" && io::copy(&mut body.take(length), stream)? != length {
        // The file has become shorter; only the end of the connection can say so.
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        204 => "No Content",
        206 => "Partial Content",
        304 => "Not Modified",
        404 => "Not Found",
        405 => "Method Not Allowed",
        416 => "Range Not Satisfiable",
        _ => "Internal Server Error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read() {
        let request =
            parse(b"GET /a%20b?c HTTP/1.1\r\nHost: x\r\nRANGE: bytes=0-\r\n\r\n").unwrap();
        assert_eq!((request.method.as_str(), request.target.as_str()), ("GET", "/a%20b?c"));
        assert_eq!(request.header("Range"), Some("bytes=0-"));
        assert!(!request.closes);
        for closes in [
            &b"GET / HTTP/1.0\r\n\r\n"[..],
            b"GET / HTTP/1.1\r\nConnection: Close\r\n\r\n",
            b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n",
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        ] {
            assert!(parse(closes).unwrap().closes);
        }
        for nonsense in [&b"GET\r\n\r\n"[..], b"\x16\x03\x01\r\n\r\n", b"GET / HTTP/9\r\n\r\n"] {
            assert!(parse(nonsense).is_none());
        }
    }
}
