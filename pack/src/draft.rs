//! A bundle cut for a host, before its first byte: every size is known, only hashes are not, and they are all as long.

use std::ops::Range;

use packlight_formats::digest::sha256;
use packlight_formats::manifest::packlight::{CHUNK_BYTES, Generator, Packlight};
use packlight_formats::manifest::tensor_cache::{
    NDARRAY_CACHE, NDARRAY_CACHE_B16, Shard, TENSOR_CACHE, TENSOR_CACHE_B16,
};
use packlight_formats::manifest::{
    File, HEADERS, Names, Span, TensorCache, content_id, cut, part_name, with_id,
};
use packlight_formats::python_json;

use crate::compact::compact;
use crate::contents::Contents;
use crate::error::{Misfit, PackError};
use crate::hash::chunk_hashes;
use crate::headers;
use crate::host::Host;
use crate::sidecar::{Sidecar, media_type};

/// How a bundle is cut into files.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cut {
    /// No file is larger.
    pub max_file_bytes: Option<u64>,
    /// How files are named.
    pub names: Names,
    /// Whose limits are kept, and whose header rules are written.
    pub host: Option<&'static Host>,
}

/// A bundle whose files are decided.
#[derive(Debug)]
pub struct Draft {
    contents: Contents,
    cut: Cut,
    /// Small files that are known already, header rules included.
    small: Vec<Small>,
    compacted: Vec<String>,
    /// Names on the host, `packlight.json` left out. Hashed ones of shards are not known yet, but are as long.
    paths: Vec<String>,
    bytes: u64,
}

/// What is known of a shard once it has been written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShardHashes {
    /// SHA-256 of the chunks of each part.
    pub(crate) parts: Vec<Vec<String>>,
    pub(crate) md5: String,
}

/// A file of the bundle that is held in memory, and the files on the host that it becomes.
#[derive(Debug)]
pub(crate) struct Small {
    bytes: Vec<u8>,
    files: Vec<(File, Range<u64>)>,
}

/// The manifests, and what they say of every file.
pub(crate) struct Manifests {
    pub(crate) packlight: Packlight,
    pub(crate) json: Vec<u8>,
    /// `tensor-cache.json` and its kin.
    pub(crate) caches: Vec<Small>,
}

impl Cut {
    /// The larger of its limits does not matter.
    pub fn cap(&self) -> Option<u64> {
        let host = self.host.map(|host| host.max_file_bytes);
        self.max_file_bytes.into_iter().chain(host).min()
    }
}

impl Draft {
    /// Decides how `contents` is cut, and checks it against the limits: all that it breaks is reported at once.
    pub fn new(mut contents: Contents, cut: Cut) -> Result<Self, PackError> {
        let (mut small, mut compacted) = (Vec::new(), Vec::new());
        for Sidecar { path, bytes } in std::mem::take(&mut contents.sidecars) {
            let too_large = cut.cap().is_some_and(|cap| bytes.len() as u64 > cap);
            let is_json = media_type(&path) == "application/json";
            let shorter = (too_large && is_json).then(|| compact(&bytes)).flatten();
            compacted.extend(shorter.is_some().then(|| path.clone()));
            small.push(Small::new(&path, shorter.unwrap_or(bytes), cut, &[]));
        }
        if cut.host.is_some_and(|host| host.headers) {
            let names = small.iter().map(Small::name).chain([TENSOR_CACHE, TENSOR_CACHE_B16]);
            let rules = headers::rules(cut.names, names).into_bytes();
            let plain = Cut { names: Names::Plain, ..cut };
            small.push(Small::new(HEADERS, rules, plain, &[]));
        }
        let mut draft = Self { contents, cut, small, compacted, paths: Vec::new(), bytes: 0 };
        draft.check()?;
        Ok(draft)
    }

    fn check(&mut self) -> Result<(), PackError> {
        let (cap, host) = (self.cut.cap().unwrap_or(u64::MAX), self.cut.host);
        let misfits = |misfits| PackError::DoesNotFit { host: host.map(|host| host.name), misfits };
        // Every part has a hash of 64 digits there. A limit far too small would make millions.
        let parts: u64 = (0..self.shards()).map(|i| self.ranges(i).len() as u64).sum();
        let least = parts.saturating_mul(64);
        if least > cap {
            return Err(misfits(vec![Misfit::Manifest { bytes: least, cap }]));
        }
        let blank: Vec<ShardHashes> = (0..self.shards()).map(|i| self.blank(i)).collect();
        let manifests = self.manifests(&blank)?;
        self.paths = manifests.packlight.files.iter().map(|file| file.path.clone()).collect();
        self.bytes = manifests.packlight.files.iter().map(|file| file.bytes).sum::<u64>()
            + manifests.json.len() as u64;
        // What a reader would refuse must not be written.
        let mut found: Vec<Misfit> =
            manifests.packlight.file_faults().into_iter().map(Misfit::File).collect();
        let bytes = manifests.json.len() as u64;
        if bytes > cap {
            found.push(Misfit::Manifest { bytes, cap });
        }
        // Header rules are read by the host, which takes no parts of them.
        if let Some(small) = self.small.iter().find(|small| small.name() == HEADERS)
            && small.in_parts()
        {
            found.push(Misfit::Headers { bytes: small.bytes.len() as u64, cap });
        }
        if let Some(limit) = host.and_then(|host| host.max_files).filter(|&n| self.files() > n) {
            found.push(Misfit::Files { files: self.files(), limit });
        }
        if let Some(limit) = host.and_then(|host| host.max_bytes).filter(|&n| self.bytes > n) {
            found.push(Misfit::Bytes { bytes: self.bytes, limit });
        }
        if found.is_empty() { Ok(()) } else { Err(misfits(found)) }
    }

    /// Files, `packlight.json` included.
    pub fn files(&self) -> u64 {
        self.paths.len() as u64 + 1
    }

    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        self.paths.iter().map(String::as_str)
    }

    /// Their bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// No file is larger.
    pub fn cap(&self) -> Option<u64> {
        self.cut.cap()
    }

    /// Files of the bundle that are stored in parts, which plain WebLLM cannot read; each with its size.
    pub fn in_parts(&self) -> Vec<(&str, u64)> {
        let shards = self.contents.tensors.records.iter().enumerate();
        let shards = shards.filter(|(i, _)| self.ranges(*i).len() > 1);
        let small = self.small.iter().filter(|small| small.in_parts());
        shards
            .map(|(_, shard)| (shard.data_path.as_str(), shard.nbytes))
            .chain(small.map(|small| (small.name(), small.bytes.len() as u64)))
            .collect()
    }

    /// Files that were written without white space to fit.
    pub fn compacted(&self) -> &[String] {
        &self.compacted
    }

    pub(crate) fn small(&self) -> &[Small] {
        &self.small
    }

    pub(crate) fn shards(&self) -> usize {
        self.contents.tensors.records.len()
    }

    /// The ranges of a shard that are files.
    pub(crate) fn ranges(&self, shard: usize) -> impl ExactSizeIterator<Item = Range<u64>> + Clone {
        cut(self.contents.tensors.records[shard].nbytes, self.cut.cap())
    }

    pub(crate) fn shard(&self, shard: usize) -> &Shard {
        &self.contents.tensors.records[shard]
    }

    /// The part of a shard that holds a byte, and its range; past the end, the last.
    pub(crate) fn part_at(&self, shard: usize, offset: u64) -> (usize, Range<u64>) {
        let cap = self.cut.cap().unwrap_or(u64::MAX).max(1);
        let last = self.ranges(shard).len() - 1;
        let part = usize::try_from(offset / cap).unwrap_or(usize::MAX).min(last);
        let start = part as u64 * cap;
        (part, start..start.saturating_add(cap).min(self.shard(shard).nbytes))
    }

    /// What stands for the hashes of a shard that are not known yet.
    fn blank(&self, shard: usize) -> ShardHashes {
        let chunks = |range: Range<u64>| (range.end - range.start).div_ceil(CHUNK_BYTES).max(1);
        let parts = self.ranges(shard).map(|range| (0..chunks(range)).map(|_| "0".repeat(64)));
        ShardHashes { parts: parts.map(Iterator::collect).collect(), md5: "0".repeat(32) }
    }

    /// The name of a part of a shard with these chunk hashes.
    pub(crate) fn path(&self, shard: usize, part: usize, sha256: &[String]) -> String {
        let name = &self.contents.tensors.records[shard].data_path;
        path(name, part, self.ranges(shard).len(), sha256, self.cut.names)
    }

    /// The manifests of the bundle whose shards have these hashes.
    pub(crate) fn manifests(&self, hashes: &[ShardHashes]) -> Result<Manifests, PackError> {
        let mut tensors = self.contents.tensors.clone();
        let mut files = Vec::new();
        for (i, (shard, hashes)) in tensors.records.iter_mut().zip(hashes).enumerate() {
            shard.md5.clone_from(&hashes.md5);
            if self.cut.names == Names::Hashed {
                let id = content_id(hashes.parts.iter().flatten());
                shard.data_path = with_id(&shard.data_path, &id);
            }
            for (part, (range, sha256)) in self.ranges(i).zip(&hashes.parts).enumerate() {
                let path = self.path(i, part, sha256);
                let (file, bytes) = (shard.data_path.clone(), shard.nbytes);
                let holds = (path != file).then(|| span(file, bytes, &range));
                files.push(entry(path, &range, sha256.clone(), holds));
            }
        }
        let mut caches = vec![cache(&tensors, self.cut, [TENSOR_CACHE, NDARRAY_CACHE])?];
        if let Some(b16) = tensors.b16() {
            caches.push(cache(&b16, self.cut, [TENSOR_CACHE_B16, NDARRAY_CACHE_B16])?);
        }
        for small in self.small.iter().chain(&caches) {
            files.extend(small.files.iter().map(|(file, _)| file.clone()));
        }
        let packlight = Packlight {
            generator: Generator {
                name: "packlight".into(),
                version: env!("CARGO_PKG_VERSION").into(),
            },
            about: self.contents.about.clone(),
            chunk_bytes: CHUNK_BYTES,
            names: self.cut.names,
            max_file_bytes: self.cut.cap(),
            compacted: self.compacted.clone(),
            files,
        };
        let json = serde_json::to_vec_pretty(&packlight).map_err(std::io::Error::other)?;
        Ok(Manifests { packlight, json, caches })
    }

    /// What the bytes of the shards depend on, by name: what must be the same for a conversion to be continued.
    pub(crate) fn recipe(&self) -> Vec<(&'static str, String)> {
        let cap = self.cut.cap().map_or_else(|| "none".into(), |cap| cap.to_string());
        let mut recipe = vec![
            ("packlight", env!("CARGO_PKG_VERSION").to_owned()),
            ("shards", sha256(json(&self.contents.tensors).as_bytes())),
            ("max-file-bytes", cap),
            ("names", json(&self.cut.names).trim_matches('"').into()),
        ];
        if let Some(about) = &self.contents.about {
            recipe.extend([
                ("scheme", about.scheme.clone()),
                ("codes", about.codes.clone()),
                ("rounding", json(&about.rounding).trim_matches('"').into()),
                ("calibration", json(&about.calibration_sha256)),
                ("overrides", json(&about.overrides)),
                ("checkpoint", sha256(json(&about.source).as_bytes())),
            ]);
        }
        recipe
    }
}

impl Small {
    /// A file of the bundle, cut; if it is not, it is there under `aliases` as well.
    fn new(name: &str, bytes: Vec<u8>, cut_to: Cut, aliases: &[&str]) -> Self {
        let size = bytes.len() as u64;
        let ranges: Vec<Range<u64>> = cut(size, cut_to.cap()).collect();
        let count = ranges.len();
        let index = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let part = |(i, range): (usize, Range<u64>)| {
            let sha256 = chunk_hashes(&bytes[index(range.start)..index(range.end)]);
            let path = path(name, i, count, &sha256, cut_to.names);
            let holds = (path != name).then(|| span(name.into(), size, &range));
            (entry(path, &range, sha256, holds), range)
        };
        let mut files: Vec<(File, Range<u64>)> = ranges.into_iter().enumerate().map(part).collect();
        if let [(file, range)] = &files[..] {
            let (whole, range) = (file.clone(), range.clone());
            let plain = (cut_to.names == Names::Hashed).then_some(name);
            let copies = plain.into_iter().chain(aliases.iter().copied()).map(|alias| {
                let alias_of = Some(name.to_owned());
                (File { path: alias.into(), holds: None, alias_of, ..whole.clone() }, range.clone())
            });
            files.extend(copies.collect::<Vec<_>>());
        }
        Self { bytes, files }
    }

    /// The name that readers ask for.
    pub(crate) fn name(&self) -> &str {
        self.files.first().and_then(|(file, _)| file.holds()).unwrap_or_default()
    }

    fn in_parts(&self) -> bool {
        self.files.iter().filter(|(file, _)| file.alias_of.is_none()).count() > 1
    }

    /// Each of its files with what is to be written into it.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&File, &[u8])> {
        let index = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        self.files
            .iter()
            .map(move |(file, range)| (file, &self.bytes[index(range.start)..index(range.end)]))
    }
}

fn cache(tensors: &TensorCache, cut: Cut, [name, old]: [&str; 2]) -> Result<Small, PackError> {
    let json = python_json::to_string(tensors, python_json::Style::TENSOR_CACHE)
        .map_err(std::io::Error::other)?;
    Ok(Small::new(name, json.into_bytes(), cut, &[old]))
}

/// The name on the host of part `part` of `count` of a file.
fn path(name: &str, part: usize, count: usize, sha256: &[String], names: Names) -> String {
    let name = match names {
        Names::Plain => name.to_owned(),
        Names::Hashed => with_id(name, &content_id(sha256)),
    };
    if count > 1 { part_name(&name, part, count) } else { name }
}

fn span(file: String, bytes: u64, range: &Range<u64>) -> Span {
    Span { file, bytes, start: range.start, end: range.end }
}

fn entry(path: String, range: &Range<u64>, sha256: Vec<String>, holds: Option<Span>) -> File {
    let (media_type, bytes) = (media_type(&path).into(), range.end - range.start);
    File { path, bytes, media_type, sha256, holds, alias_of: None }
}

/// Data of ours, for comparing.
fn json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
