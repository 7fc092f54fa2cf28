//! A range of a remote file as a stream, which goes on where the connection broke off.

use std::io::{self, Read};
use std::ops::Range;

use ureq::BodyReader;
use ureq::http::header;

use crate::client::{Client, Header, Reply, is_html, length, refuse_encoded, text};
use crate::error::HttpError;

/// This much between two failures and the count of failures starts anew.
const PROGRESS: u64 = 1 << 20;

/// Bytes `range` of a file.
pub(crate) struct Stream<'a> {
    client: &'a Client,
    url: String,
    range: Range<u64>,
    /// Bytes of the whole file, where they are known.
    total: Option<u64>,
    /// The next byte.
    at: u64,
    connection: Option<Connection>,
    failures: u32,
}

struct Connection {
    body: BodyReader<'static>,
    /// Where it began.
    start: u64,
    /// Whether its end should be the file's, which no Content-Length has promised.
    unbounded: bool,
}

impl<'a> Stream<'a> {
    /// Connects. A `total` is what the file must be long; without one, lengths are not compared.
    pub(crate) fn open(
        client: &'a Client,
        url: String,
        range: Range<u64>,
        total: Option<u64>,
    ) -> Result<Self, HttpError> {
        let at = range.start;
        let mut stream = Self { client, url, range, total, at, connection: None, failures: 0 };
        stream.connection = Some(stream.connect()?);
        Ok(stream)
    }

    /// Fills a buffer.
    pub(crate) fn fill(&mut self, mut buffer: &mut [u8]) -> Result<(), HttpError> {
        while !buffer.is_empty() {
            match self.next(buffer)? {
                0 => return Err(self.broken("there is nothing after it".into())),
                n => buffer = &mut buffer[n..],
            }
        }
        Ok(())
    }

    /// Reads some bytes; 0 at the end of the range.
    pub(crate) fn next(&mut self, buffer: &mut [u8]) -> Result<usize, HttpError> {
        loop {
            let room = usize::try_from(self.range.end - self.at).unwrap_or(usize::MAX);
            let room = room.min(buffer.len());
            if room == 0 {
                return Ok(0);
            }
            if self.connection.is_none() {
                self.connection = Some(self.connect()?);
            }
            let Some(connection) = &mut self.connection else { continue };
            let reason = match connection.body.read(&mut buffer[..room]) {
                Ok(0) => "the connection was closed".into(),
                Ok(n) => {
                    self.at += n as u64;
                    if self.at == self.range.end {
                        self.finish()?;
                    }
                    return Ok(n);
                }
                Err(error) => error.to_string(),
            };
            self.lose(reason)?;
        }
    }

    /// Sees the end of the answer, so that the connection can be used again.
    fn finish(&mut self) -> Result<(), HttpError> {
        let Some(mut connection) = self.connection.take() else { return Ok(()) };
        let more = matches!(connection.body.read(&mut [0]), Ok(1..));
        if more && connection.unbounded {
            Err(self.wrong_length(self.range.end + 1))
        } else {
            Ok(())
        }
    }

    /// Drops the connection and waits before the next.
    fn lose(&mut self, reason: String) -> Result<(), HttpError> {
        let start = self.connection.take().map_or(self.at, |connection| connection.start);
        if self.at - start.min(self.at) >= PROGRESS {
            self.failures = 0;
        }
        if self.client.pause(&mut self.failures, None) { Ok(()) } else { Err(self.broken(reason)) }
    }

    fn connect(&mut self) -> Result<Connection, HttpError> {
        loop {
            let range = self.at..self.range.end;
            // A file that is wanted whole is asked for whole: caches between us like that best.
            let whole = range.start == 0 && self.total == Some(range.end);
            let asked = format!("bytes={}-{}", range.start, range.end.saturating_sub(1));
            let mut headers: Vec<Header> = vec![(header::ACCEPT_ENCODING, "identity".into())];
            if !whole {
                headers.push((header::RANGE, asked.clone()));
            }
            let reply = match self.client.get(&self.url, &headers, &mut self.failures) {
                // The file ends before the range begins.
                Err(HttpError::Status { status: 416, .. }) => return Err(self.wrong_length(0)),
                reply => reply?,
            };
            self.check_head(&reply, &asked, whole)?;
            let unbounded = self.total == Some(range.end) && length(&reply).is_none();
            let skip = if reply.status == 200 { range.start } else { 0 };
            let mut body = reply.body.into_reader();
            match io::copy(&mut body.by_ref().take(skip), &mut io::sink()) {
                Ok(skipped) if skipped == skip => {
                    return Ok(Connection { body, start: self.at, unbounded });
                }
                Ok(_) => self.lose("the connection was closed".into())?,
                Err(error) => self.lose(error.to_string())?,
            }
        }
    }

    /// Whether the answer can be what was asked for, before a byte of it is read.
    fn check_head(&self, reply: &Reply, asked: &str, whole: bool) -> Result<(), HttpError> {
        refuse_encoded(&self.url, reply)?;
        if is_html(reply) {
            return Err(HttpError::Html { url: self.url.clone() });
        }
        if reply.status == 200 {
            return match (length(reply), self.total) {
                (Some(found), Some(total)) if found != total => Err(self.wrong_length(found)),
                (Some(found), None) if found < self.range.end => Err(self.wrong_length(found)),
                _ => Ok(()),
            };
        }
        let found = text(&reply.headers, &header::CONTENT_RANGE).unwrap_or_default();
        let wrong = || HttpError::Range {
            url: self.url.clone(),
            asked: asked.trim_start_matches("bytes=").into(),
            found: found.into(),
        };
        let (start, end, total) = content_range(found).ok_or_else(wrong)?;
        match (total, self.total) {
            (Some(found), Some(total)) if found != total => return Err(self.wrong_length(found)),
            _ => {}
        }
        // A server may send less than was asked for; the rest is asked for again.
        if whole || start != self.at || end >= self.range.end { Err(wrong()) } else { Ok(()) }
    }

    fn wrong_length(&self, found: u64) -> HttpError {
        let expected = self.total.unwrap_or(self.range.end);
        HttpError::Length { url: self.url.clone(), found, expected }
    }

    fn broken(&self, reason: String) -> HttpError {
        let expected = self.total.unwrap_or(self.range.end);
        HttpError::Broken { url: self.url.clone(), at: self.at, expected, reason }
    }
}

impl Read for Stream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(self.next(buffer)?)
    }
}

/// `bytes 0-9/100` as first byte, last byte and total; the total may be `*`.
fn content_range(value: &str) -> Option<(u64, u64, Option<u64>)> {
    let (range, total) = value.strip_prefix("bytes ")?.split_once('/')?;
    let (start, end) = range.split_once('-')?;
    let total = if total == "*" { None } else { Some(total.parse().ok()?) };
    let (start, end) = (start.parse().ok()?, end.parse().ok()?);
    (start <= end).then_some((start, end, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges_are_read() {
        assert_eq!(content_range("bytes 0-9/100"), Some((0, 9, Some(100))));
        assert_eq!(content_range("bytes 5-5/*"), Some((5, 5, None)));
        for wrong in ["", "bytes */100", "bytes 9-0/100", "0-9/100", "bytes 0-9", "bytes a-9/10"] {
            assert_eq!(content_range(wrong), None, "{wrong}");
        }
    }
}
