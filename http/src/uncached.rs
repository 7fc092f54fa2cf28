//! A bundle as its host has it now, past the cache: what `verify` reads.

use std::io::{Cursor, Read};

use ureq::http::header;

use crate::address::encode;
use crate::client::{Client, is_html};
use crate::error::HttpError;
use crate::remote::MAX_SMALL;
use crate::stream::Stream;

/// A bundle's folder on a web server, read from its beginning to its end.
#[derive(Debug)]
pub struct Uncached {
    client: Client,
    folder: String,
}

impl Uncached {
    /// The folder at a URL that ends in `/`.
    pub fn new(client: Client, folder: String) -> Self {
        Self { client, folder }
    }

    /// Its URL.
    pub fn folder(&self) -> &str {
        &self.folder
    }

    /// A file from its beginning; `bytes` is what it must be long, where that is known.
    pub fn open(&self, path: &str, bytes: Option<u64>) -> Result<Box<dyn Read + '_>, HttpError> {
        let url = format!("{}{}", self.folder, encode(path));
        if let Some(bytes) = bytes {
            return Ok(Box::new(Stream::open(&self.client, url, 0..bytes, Some(bytes))?));
        }
        let headers = [(header::ACCEPT_ENCODING, "identity".into())];
        let (bytes, reply) = self.client.small(&url, &headers, MAX_SMALL)?;
        if is_html(&reply) {
            return Err(HttpError::Html { url });
        }
        Ok(Box::new(Cursor::new(bytes)))
    }
}
