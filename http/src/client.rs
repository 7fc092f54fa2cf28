//! Requests: timeouts, retries, redirects and tokens in one place.

use std::io::Read as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, SystemTime};

use ureq::http::{HeaderMap, Method, Request, header};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};
use url::Url;

use crate::address::Hub;
use crate::error::HttpError;
use crate::policy::Policy;

/// More hops than this lead nowhere.
const MAX_REDIRECTS: usize = 5;

/// A header of a request.
pub(crate) type Header = (header::HeaderName, String);

/// Speaks HTTP, and knows to whom a token may be shown.
#[derive(Debug)]
pub struct Client {
    agent: Agent,
    hub: Hub,
    policy: Policy,
    /// Whether any host has answered yet: a name that never worked is not worth waiting for.
    answered: AtomicBool,
}

/// The head of an answer, and a body to be read.
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    /// The addresses it was redirected to; the last one answered.
    pub(crate) hops: Vec<String>,
    pub(crate) body: Body,
}

impl Client {
    /// A client that trusts the certificates that the system trusts.
    pub fn new(hub: Hub, policy: Policy) -> Self {
        let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
        let config = Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            // Redirects are followed here, where every hop is looked at.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("packlight/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(Some(policy.connect))
            .timeout_connect(Some(policy.connect))
            .timeout_per_read(Some(policy.silence))
            .build();
        Self { agent: config.into(), hub, policy, answered: AtomicBool::new(false) }
    }

    /// The same without the token: it meets hosts as anybody does.
    pub(crate) fn anonymous(self) -> Self {
        Self { hub: self.hub.without_token(), ..self }
    }

    /// The hub that `hf://` means.
    pub fn hub(&self) -> &Hub {
        &self.hub
    }

    /// One request, with its redirects but without retries; any status is an answer.
    pub(crate) fn send(
        &self,
        method: &Method,
        url: &str,
        headers: &[Header],
    ) -> Result<Reply, HttpError> {
        let mut hops: Vec<String> = Vec::new();
        loop {
            let at = hops.last().map_or(url, String::as_str);
            let mut request = Request::builder().method(method).uri(at);
            for (name, value) in headers {
                request = request.header(name, value);
            }
            // Every hop is asked anew whether it may see the token.
            if let Some(token) = self.hub.token_for(at) {
                request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
            }
            let request = request.body(()).map_err(|error| unexpected(url, error.to_string()))?;
            let (head, body) =
                self.agent.run(request).map_err(|error| failed(url, error))?.into_parts();
            self.answered.store(true, Ordering::Relaxed);
            let status = head.status.as_u16();
            if !matches!(status, 301 | 302 | 303 | 307 | 308) {
                return Ok(Reply { status, headers: head.headers, hops, body });
            }
            let next = next_hop(url, at, text(&head.headers, &header::LOCATION))?;
            if hops.len() == MAX_REDIRECTS {
                return Err(HttpError::Redirects { url: url.into() });
            }
            hops.push(next);
        }
    }

    /// A GET that has succeeded: 200, 206, or 304 where there was a condition. `failures` counts tries that failed.
    pub(crate) fn get(
        &self,
        url: &str,
        headers: &[Header],
        failures: &mut u32,
    ) -> Result<Reply, HttpError> {
        loop {
            let mut asked = None;
            let error = match self.send(&Method::GET, url, headers) {
                Ok(reply) => match judge(url, &reply, self.hub.owns(url)) {
                    None => return Ok(reply),
                    Some(error) => {
                        asked = retry_after(&reply.headers);
                        error
                    }
                },
                Err(error) => error,
            };
            let again = match &error {
                HttpError::TooMany { .. } | HttpError::Status { status: 408 | 500.., .. } => true,
                HttpError::Unreachable { .. } => self.answered.load(Ordering::Relaxed),
                _ => false,
            };
            if !again || !self.pause(failures, asked) {
                return Err(error);
            }
        }
    }

    /// Counts a failure and waits before the next try; false where there is to be none.
    pub(crate) fn pause(&self, failures: &mut u32, asked: Option<Duration>) -> bool {
        *failures += 1;
        match self.policy.pause(*failures, asked) {
            Some(pause) if *failures < self.policy.attempts => {
                sleep(pause);
                true
            }
            _ => false,
        }
    }

    /// The whole of a small file, with the head it came with. For files without a hash: manifests and listings.
    pub(crate) fn small(
        &self,
        url: &str,
        headers: &[Header],
        limit: u64,
    ) -> Result<(Vec<u8>, Reply), HttpError> {
        let mut failures = 0;
        loop {
            let mut reply = self.get(url, headers, &mut failures)?;
            if reply.status == 304 {
                return Ok((Vec::new(), reply));
            }
            refuse_encoded(url, &reply)?;
            let mut bytes = Vec::new();
            match reply.body.as_reader().take(limit + 1).read_to_end(&mut bytes) {
                Ok(_) if bytes.len() as u64 > limit => {
                    return Err(HttpError::TooLong { url: url.into(), limit });
                }
                Ok(_) => return Ok((bytes, reply)),
                Err(_) if self.pause(&mut failures, None) => {}
                Err(error) => {
                    let (at, expected) = (bytes.len() as u64, length(&reply).unwrap_or(0));
                    let reason = error.to_string();
                    return Err(HttpError::Broken { url: url.into(), at, expected, reason });
                }
            }
        }
    }
}

/// What is wrong with an answer to a GET.
fn judge(url: &str, reply: &Reply, hub: bool) -> Option<HttpError> {
    let (url, status) = (url.to_owned(), reply.status);
    Some(match status {
        200 | 206 | 304 => return None,
        401 | 403 => HttpError::Denied { url, status, hub },
        404 | 410 => HttpError::Missing { url, status },
        429 => {
            let seconds = retry_after(&reply.headers).map(|asked| asked.as_secs());
            HttpError::TooMany { url, seconds }
        }
        _ => HttpError::Status { url, status },
    })
}

/// `Retry-After` in seconds or as a date, or what the hub says instead: `RateLimit: "api";r=0;t=55`.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    if let Some(value) = text(headers, &header::RETRY_AFTER) {
        return match value.parse() {
            Ok(seconds) => Some(Duration::from_secs(seconds)),
            Err(_) => httpdate::parse_http_date(value)
                .ok()
                .map(|date| date.duration_since(SystemTime::now()).unwrap_or_default()),
        };
    }
    let limit = headers.get("ratelimit")?.to_str().ok()?;
    let seconds = limit.split(';').find_map(|part| part.trim().strip_prefix("t="))?;
    seconds.parse().ok().map(Duration::from_secs)
}

pub(crate) fn refuse_encoded(url: &str, reply: &Reply) -> Result<(), HttpError> {
    match text(&reply.headers, &header::CONTENT_ENCODING) {
        Some(encoding) if !encoding.eq_ignore_ascii_case("identity") => {
            Err(HttpError::Encoded { url: url.into(), encoding: encoding.into() })
        }
        _ => Ok(()),
    }
}

pub(crate) fn is_html(reply: &Reply) -> bool {
    text(&reply.headers, &header::CONTENT_TYPE)
        .is_some_and(|kind| kind.to_ascii_lowercase().starts_with("text/html"))
}

/// Content-Length, where there is one.
pub(crate) fn length(reply: &Reply) -> Option<u64> {
    text(&reply.headers, &header::CONTENT_LENGTH)?.parse().ok()
}

pub(crate) fn text<'a>(headers: &'a HeaderMap, name: &header::HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

/// Where a redirect leads from `at`, if one may go there.
fn next_hop(url: &str, at: &str, location: Option<&str>) -> Result<String, HttpError> {
    let location = location.ok_or_else(|| unexpected(url, "a redirect without Location".into()))?;
    let next = Url::parse(at).and_then(|at| at.join(location));
    let next = next.map_err(|error| unexpected(url, format!("it redirects nowhere: {error}")))?;
    if at.starts_with("https://") && next.scheme() != "https" {
        return Err(HttpError::Downgrade { url: url.into() });
    }
    Ok(next.into())
}

fn unexpected(url: &str, reason: String) -> HttpError {
    HttpError::Unexpected { url: url.into(), reason }
}

fn failed(url: &str, error: ureq::Error) -> HttpError {
    let url = url.to_owned();
    let reason = match &error {
        ureq::Error::Io(error) => error.to_string(),
        error => error.to_string(),
    };
    match error {
        ureq::Error::Tls(_) | ureq::Error::Rustls(_) | ureq::Error::Pem(_) => {
            HttpError::Tls { url, reason }
        }
        // How rustls reports through a stream.
        ureq::Error::Io(error) if error.kind() == std::io::ErrorKind::InvalidData => {
            HttpError::Tls { url, reason }
        }
        ureq::Error::BadUri(_) | ureq::Error::Http(_) => HttpError::Unexpected { url, reason },
        _ => HttpError::Unreachable { url, reason },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_joined() {
        for (location, expected) in [
            ("https://x/y", "https://x/y"),
            ("//x/y", "https://x/y"),
            ("/x", "https://a.b:1/x"),
            ("x", "https://a.b:1/c/x"),
            ("../x", "https://a.b:1/x"),
            ("?x", "https://a.b:1/c/d?x"),
            ("/x?next=http://y/%20z", "https://a.b:1/x?next=http://y/%20z"),
        ] {
            assert_eq!(next_hop("u", "https://a.b:1/c/d", Some(location)).unwrap(), expected);
        }
        assert!(next_hop("u", "https://a.b/c", Some("https://")).is_err());
    }

    #[test]
    fn no_redirect_leaves_https() {
        let hop = |location| next_hop("u", "https://a.b/c", Some(location));
        assert_eq!(hop("https://x/").unwrap(), "https://x/");
        for location in ["http://a.b/c", "http://127.0.0.1/", "ftp://x/"] {
            assert!(matches!(hop(location), Err(HttpError::Downgrade { .. })), "{location}");
        }
        assert_eq!(next_hop("u", "http://a.b/c", Some("https://a.b/c")).unwrap(), "https://a.b/c");
    }

    #[test]
    fn hosts_say_when_to_come_back() {
        let asked = |name: &'static str, value: &str| {
            retry_after(&HeaderMap::from_iter([(
                header::HeaderName::from_static(name),
                value.parse().unwrap(),
            )]))
        };
        assert_eq!(asked("retry-after", "7"), Some(Duration::from_secs(7)));
        assert_eq!(asked("retry-after", "Wed, 21 Oct 2015 07:28:00 GMT"), Some(Duration::ZERO));
        assert_eq!(asked("ratelimit", "\"api\";r=0;t=55"), Some(Duration::from_secs(55)));
        assert_eq!(asked("retry-after", "soon"), None);
    }
}
