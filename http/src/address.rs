//! Addresses of bundles and checkpoints: `https://host/folder/` and `hf://owner/name@revision`.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::error::HttpError;

/// All but what RFC 3986 leaves unreserved.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Where something is that is not in a folder of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A folder on a web server; ends in `/`.
    Url(String),
    /// A repository of the Hugging Face hub.
    Hub(Repository),
}

/// `hf://owner/name@revision`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repository {
    /// `owner/name`, or `name` alone for the oldest ones.
    pub id: String,
    /// A branch, tag or commit.
    pub revision: String,
}

impl Address {
    /// Reads an address; `None` where the text is not one, but the path of a folder.
    pub fn parse(text: &str) -> Result<Option<Self>, HttpError> {
        let Some((scheme, rest)) = text.split_once("://") else { return Ok(None) };
        let parsed = match scheme.to_ascii_lowercase().as_str() {
            "hf" => {
                Repository::parse(rest).map(Self::Hub).ok_or("it is not hf://owner/name[@revision]")
            }
            scheme @ ("http" | "https") => check(rest).map(|()| {
                let folder = rest.strip_suffix("/packlight.json").unwrap_or(rest);
                Self::Url(format!("{scheme}://{}/", folder.trim_end_matches('/')))
            }),
            _ => Err("packlight reads http://, https:// and hf://"),
        };
        parsed.map(Some).map_err(|reason| HttpError::Address { url: shown(text), reason })
    }

    /// The URL of the folder, ending in `/`.
    pub fn folder(&self, hub: &Hub) -> String {
        match self {
            Self::Url(url) => url.clone(),
            Self::Hub(repository) => hub.folder(&repository.id, &repository.revision),
        }
    }
}

impl Repository {
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim_end_matches('/');
        let (id, revision) = text.split_once('@').unwrap_or((text, "main"));
        let is_name = |name: &str| {
            !name.is_empty()
                && name != "."
                && name != ".."
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        };
        let sound = id.split('/').count() <= 2 && id.split('/').all(is_name);
        let revision = Some(revision).filter(|revision| !revision.is_empty())?;
        sound.then(|| Self { id: id.into(), revision: revision.into() })
    }
}

impl std::fmt::Display for Repository {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "hf://{}@{}", self.id, self.revision)
    }
}

/// The hub, or a mirror of it.
#[derive(Clone)]
pub struct Hub {
    endpoint: String,
    token: Option<String>,
}

impl Hub {
    /// huggingface.co, unless `HF_ENDPOINT` names another; `HF_TOKEN` opens private repositories there.
    pub fn from_env() -> Result<Self, HttpError> {
        let set = |name| {
            let value = std::env::var(name).ok()?.trim().to_owned();
            Some(value).filter(|value| !value.is_empty())
        };
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into());
        // It is part of every URL, and so of every error.
        let checked = match endpoint.split_once("://") {
            Some(("http" | "https", rest)) => check(rest),
            _ => Err("it does not begin with https:// or http://"),
        };
        checked.map_err(|reason| HttpError::Endpoint { url: shown(&endpoint), reason })?;
        Ok(Self::new(&endpoint, set("HF_TOKEN")))
    }

    /// A hub at an address.
    pub fn new(endpoint: &str, token: Option<String>) -> Self {
        Self { endpoint: endpoint.trim_end_matches('/').into(), token }
    }

    pub(crate) fn without_token(self) -> Self {
        Self { token: None, ..self }
    }

    /// `<endpoint>/owner/name/resolve/<revision>/`.
    pub(crate) fn folder(&self, id: &str, revision: &str) -> String {
        format!("{}/{id}/resolve/{}/", self.endpoint, encode(revision))
    }

    /// `<endpoint>/api/models/owner/name/<what>/<revision>`.
    pub(crate) fn api(&self, id: &str, what: &str, revision: &str) -> String {
        format!("{}/api/models/{id}/{what}/{}", self.endpoint, encode(revision))
    }

    /// Whether a URL is the hub's own.
    pub(crate) fn owns(&self, url: &str) -> bool {
        url.strip_prefix(&self.endpoint).is_some_and(|path| path.starts_with('/'))
    }

    /// The token for a URL: only for the hub's own, and never in clear over a network.
    pub(crate) fn token_for(&self, url: &str) -> Option<&str> {
        let token = self.token.as_deref().filter(|_| self.owns(url))?;
        (url.starts_with("https://") || is_loopback(url)).then_some(token)
    }
}

/// The token is nobody's business.
impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

/// Whether a folder can be at what follows `https://`.
fn check(rest: &str) -> Result<(), &'static str> {
    let authority = rest.split('/').next().unwrap_or_default();
    if authority.is_empty() {
        return Err("it names no host");
    }
    if authority.contains('@') {
        return Err("it carries a user name or a password");
    }
    if rest.contains(['?', '#']) || rest.contains(|c: char| c.is_control() || c == ' ') {
        return Err("a folder's address has no `?`, `#` or spaces");
    }
    if has_odd_port(authority) { Err("its port is not a number") } else { Ok(()) }
}

/// Whether what follows the host is no port: half a password, perhaps.
fn has_odd_port(authority: &str) -> bool {
    let after_v6 = authority.rsplit(']').next().unwrap_or_default();
    after_v6.split_once(':').is_some_and(|(_, port)| !port.bytes().all(|b| b.is_ascii_digit()))
}

/// An address that was refused, as it may be repeated: people paste passwords and signatures along with it.
fn shown(text: &str) -> String {
    let public = text.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = public.split_once("://") else { return public.into() };
    let authority = rest.split('/').next().unwrap_or_default();
    if !authority.contains('@') && !has_odd_port(authority) {
        return public.into();
    }
    // Passwords may hold slashes, too.
    let host = rest.rsplit_once('@').map_or("", |(_, host)| host);
    format!("{scheme}://***@{host}")
}

/// Percent-encodes one segment of a path.
pub(crate) fn encode(segment: &str) -> String {
    utf8_percent_encode(segment, ENCODED).to_string()
}

/// Scheme, host and port of a URL.
pub(crate) fn origin(url: &str) -> &str {
    let host = url.find("://").map_or(0, |at| at + 3);
    url[host..].find('/').map_or(url, |end| &url[..host + end])
}

/// The host of a URL, without its port.
pub(crate) fn host(url: &str) -> &str {
    let authority = origin(url).split_once("://").map_or("", |(_, authority)| authority);
    match authority.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    }
}

pub(crate) fn is_loopback(url: &str) -> bool {
    let host = host(url);
    let address = host.parse::<std::net::IpAddr>();
    address.map_or(host == "localhost" || host.ends_with(".localhost"), |ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(text: &str) -> String {
        Address::parse(text).unwrap().unwrap().folder(&Hub::new("https://huggingface.co", None))
    }

    #[test]
    fn addresses_become_folders() {
        assert_eq!(folder("https://a.b/c"), "https://a.b/c/");
        assert_eq!(folder("HTTPS://a.b/c/packlight.json"), "https://a.b/c/");
        assert_eq!(folder("http://127.0.0.1:8000"), "http://127.0.0.1:8000/");
        assert_eq!(folder("hf://o/n"), "https://huggingface.co/o/n/resolve/main/");
        assert_eq!(
            folder("hf://o/n@refs/pr/1"),
            "https://huggingface.co/o/n/resolve/refs%2Fpr%2F1/"
        );
        assert_eq!(Address::parse("bundles/a").unwrap(), None);
        assert_eq!(Address::parse("C:\\bundle").unwrap(), None);
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "ftp://a/b",
            "s3://a/b",
            "https://",
            "https:///x",
            "https://me:secret@a/b",
            "https://a/b?c",
            "https://a/b#c",
            "https://a/b c",
            "https://me:sec/ret@a/b",
            "hf://",
            "hf://a/b/c",
            "hf://../b",
            "hf://a/b@",
            "hf://a b",
        ] {
            assert!(matches!(Address::parse(text), Err(HttpError::Address { .. })), "{text}");
        }
    }

    #[test]
    fn no_secret_is_repeated() {
        for (text, expected) in [
            ("https://me:s3cret@a/b", "https://***@a/b"),
            ("https://me:s3/cr@et@a/b", "https://***@a/b"),
            ("https://me:s3?cret@a/b", "https://***@"),
            ("s3://KEY:s3/cret@a/b", "s3://***@a/b"),
            ("hf://me:s3cret@a/b/c", "hf://***@a/b/c"),
            ("https://a/b@1?X-Amz-Signature=s3cret", "https://a/b@1"),
            ("https://[::1]:8000/b@1#s3cret", "https://[::1]:8000/b@1"),
        ] {
            let Err(HttpError::Address { url, .. }) = Address::parse(text) else {
                panic!("{text} is taken for an address");
            };
            assert_eq!(url, expected, "{text}");
        }
    }

    #[test]
    fn tokens_stay_with_their_host() {
        let hub = |endpoint| Hub::new(endpoint, Some("hf_secret".into()));
        let https = hub("https://huggingface.co");
        assert_eq!(https.token_for("https://huggingface.co/o/n/resolve/main/x"), Some("hf_secret"));
        assert_eq!(https.token_for("https://huggingface.co.evil.example/o"), None);
        assert_eq!(https.token_for("https://cdn.example/o"), None);
        assert_eq!(https.token_for("http://huggingface.co/o"), None);
        assert_eq!(hub("http://mirror.example").token_for("http://mirror.example/o"), None);
        assert_eq!(hub("http://127.0.0.1:9").token_for("http://127.0.0.1:9/o"), Some("hf_secret"));
        assert!(!format!("{https:?}").contains("secret"));
    }
}
