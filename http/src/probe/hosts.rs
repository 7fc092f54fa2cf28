//! Hosts by their names, and where each is told what to send.

use crate::address::{host, is_loopback};

/// What a host row says.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) name: &'static str,
    /// Ends of host names.
    suffixes: &'static [&'static str],
    /// How CORS is had there.
    pub(super) cors: &'static str,
    /// How other headers are set there.
    pub(super) headers: &'static str,
    /// Requests that an anonymous client may make in a while, and the seconds of that while.
    pub(super) rate: Option<(u64, u64)>,
}

const FILE: &str = "a `_headers` file at the root of the site";
const WRITTEN_FILE: &str =
    "a `_headers` file at the root of the site; `--host cloudflare-pages` writes one";
const BUCKET_CORS: &str = "the bucket's CORS rule: origins *, methods GET and HEAD, headers Range, exposed Content-Range and ETag";
const BUCKET_HEADERS: &str = "the object's metadata, which is set when it is uploaded";

const HOSTS: [Host; 14] = [
    Host {
        name: "Cloudflare Pages",
        suffixes: &["pages.dev"],
        cors: WRITTEN_FILE,
        headers: WRITTEN_FILE,
        rate: None,
    },
    Host { name: "Netlify", suffixes: &["netlify.app"], cors: FILE, headers: FILE, rate: None },
    Host {
        name: "GitHub Pages",
        suffixes: &["github.io"],
        cors: "nothing to set: it allows every origin, so this is some other host's answer",
        headers: "they cannot be set on GitHub Pages",
        rate: None,
    },
    Host {
        name: "GitHub",
        suffixes: &["github.com", "githubusercontent.com"],
        cors: "downloads of releases cannot be read by pages of another origin: use GitHub Pages",
        headers: "they cannot be set for releases: use GitHub Pages or a bucket",
        rate: None,
    },
    Host {
        name: "Hugging Face",
        suffixes: &["huggingface.co", "hf.co"],
        cors: "only addresses with /resolve/ allow it: hf://owner/name, or .../resolve/main/",
        headers: "they cannot be set on the hub",
        rate: Some((3000, 300)),
    },
    Host {
        name: "jsDelivr",
        suffixes: &["jsdelivr.net"],
        cors: "nothing to set: it allows every origin, so this is some other host's answer",
        headers: "they cannot be set; an address with a full version is cached for good",
        rate: None,
    },
    Host {
        name: "Cloudflare R2",
        suffixes: &["r2.dev", "r2.cloudflarestorage.com"],
        cors: BUCKET_CORS,
        headers: BUCKET_HEADERS,
        rate: None,
    },
    Host {
        name: "Amazon S3",
        suffixes: &["amazonaws.com", "cloudfront.net"],
        cors: BUCKET_CORS,
        headers: BUCKET_HEADERS,
        rate: None,
    },
    Host {
        name: "Google Cloud Storage",
        suffixes: &["storage.googleapis.com"],
        cors: BUCKET_CORS,
        headers: BUCKET_HEADERS,
        rate: None,
    },
    Host {
        name: "Azure Blob Storage",
        suffixes: &["core.windows.net"],
        cors: "the storage account's CORS rule for the blob service",
        headers: BUCKET_HEADERS,
        rate: None,
    },
    Host {
        name: "Vercel",
        suffixes: &["vercel.app"],
        cors: "`headers` in vercel.json",
        headers: "`headers` in vercel.json",
        rate: None,
    },
    Host {
        name: "Firebase Hosting",
        suffixes: &["web.app", "firebaseapp.com"],
        cors: "`headers` in firebase.json",
        headers: "`headers` in firebase.json",
        rate: None,
    },
    Host {
        name: "this machine",
        suffixes: &[],
        cors: "`packlight serve` sends them",
        headers: "`packlight serve` sends them",
        rate: None,
    },
    Host {
        name: "a web server",
        suffixes: &[],
        cors: "the server's settings",
        headers: "the server's settings",
        rate: None,
    },
];

impl Host {
    /// The row of a URL.
    pub(super) fn of(url: &str) -> &'static Self {
        let name = host(url).to_ascii_lowercase();
        let is = |suffix: &&str| {
            name.strip_suffix(suffix).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        let [known @ .., loopback, other] = &HOSTS;
        let listed = known.iter().find(|row| row.suffixes.iter().any(is));
        listed.unwrap_or(if is_loopback(url) { loopback } else { other })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_recognised() {
        for (url, name) in [
            ("https://me.pages.dev/bundle/", "Cloudflare Pages"),
            ("https://me.github.io/bundle/", "GitHub Pages"),
            ("https://github.com/me/it/releases/download/v1/", "GitHub"),
            ("https://huggingface.co/o/n/resolve/main/", "Hugging Face"),
            ("https://cdn.jsdelivr.net/gh/o/n@1/", "jsDelivr"),
            ("https://b.s3.eu-west-1.amazonaws.com/x/", "Amazon S3"),
            ("https://pub-1.r2.dev/x/", "Cloudflare R2"),
            ("http://127.0.0.1:8000/", "this machine"),
            ("http://[::1]:8000/", "this machine"),
            ("https://notgithub.io/", "a web server"),
        ] {
            assert_eq!(Host::of(url).name, name, "{url}");
        }
    }
}
