//! Folders and addresses: wherever a bundle or checkpoint is, it is opened here.

use std::borrow::Cow;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;

use indicatif::ProgressBar;
use packlight_formats::chat_config::TOKENIZER_FILES;
use packlight_http::{
    Address, Cache, Client, HttpError, Hub, Policy, Progress, Remote, Repository, Uncached,
    download,
};
use packlight_pack::Files;
use packlight_runner::source::{Folder, Source, SourceError, one_by_one};

use crate::args::CacheFolder;
use crate::progress;
use crate::report::Hinted;
use crate::sidecars::SETTINGS;

/// The address that an argument is, unless it is the path of a folder.
pub(crate) fn address(argument: &Path) -> anyhow::Result<Option<Address>> {
    Ok(argument.to_str().map(Address::parse).transpose()?.flatten())
}

pub(crate) fn client() -> Result<Client, HttpError> {
    Ok(Client::new(Hub::from_env()?, Policy::default()))
}

pub(crate) fn cache(folder: &CacheFolder) -> Result<Cache, Hinted> {
    let folder = folder.folder.clone().or_else(Cache::default_folder);
    let none = || Hinted::new("there is no cache folder", "name one with --cache DIR");
    Ok(Cache::new(folder.ok_or_else(none)?))
}

/// A bundle, near or far.
#[derive(Debug)]
pub(crate) enum Place {
    Folder(Folder),
    Remote(Remote),
}

impl Place {
    /// A folder, or an address whose files go through the cache.
    pub(crate) fn open(argument: &Path, cache_folder: &CacheFolder) -> anyhow::Result<Self> {
        let Some(address) = address(argument)? else {
            return Ok(Self::Folder(Folder::new(argument)));
        };
        let client = client()?;
        let folder = address.folder(client.hub());
        let remote = Remote::open(client, folder, cache(cache_folder)?)?;
        if let Some(error) = remote.offline() {
            eprintln!("note: going on with what was downloaded before: {error}");
        }
        Ok(Self::Remote(remote))
    }
}

impl Source for Place {
    async fn file(&self, path: &str) -> Result<Option<Vec<u8>>, SourceError> {
        match self {
            Self::Folder(folder) => folder.file(path).await,
            Self::Remote(remote) => remote
                .file(path)
                .map_err(|error| SourceError::Io { path: path.into(), source: error.into() }),
        }
    }

    async fn range(&self, path: &str, range: Range<u64>) -> Result<Vec<u8>, SourceError> {
        match self {
            Self::Folder(folder) => folder.range(path, range).await,
            Self::Remote(remote) => remote
                .range(path, range)
                .map_err(|error| SourceError::Io { path: path.into(), source: error.into() }),
        }
    }

    async fn ranges(&self, ranges: &[(&str, Range<u64>)]) -> Result<Vec<Vec<u8>>, SourceError> {
        match self {
            Self::Folder(folder) => folder.ranges(ranges).await,
            Self::Remote(_) => one_by_one(self, ranges).await,
        }
    }

    fn announce(&self, paths: &[&str]) {
        if let Self::Remote(remote) = self {
            remote.announce(paths);
        }
    }
}

/// A bundle as its host has it, past the cache.
pub(crate) struct Distant(Uncached);

impl Distant {
    pub(crate) fn new(address: &Address) -> Result<Self, HttpError> {
        let client = client()?;
        let folder = address.folder(client.hub());
        Ok(Self(Uncached::new(client, folder)))
    }
}

impl Files for Distant {
    fn place(&self) -> String {
        self.0.folder().into()
    }

    fn open(&self, path: &str, bytes: Option<u64>) -> io::Result<Box<dyn Read + '_>> {
        Ok(self.0.open(path, bytes)?)
    }

    fn size(&self, _path: &str) -> io::Result<Option<u64>> {
        Ok(None)
    }

    fn names(&self) -> io::Result<Option<Vec<String>>> {
        Ok(None)
    }
}

/// Files that are the same in a checkpoint and in a bundle.
pub(crate) fn sidecars() -> Vec<&'static str> {
    TOKENIZER_FILES.into_iter().chain(SETTINGS).collect()
}

/// The folder of a checkpoint, which is downloaded first where it is on the hub.
pub(crate) fn checkpoint<'a>(
    argument: &'a Path,
    cache_folder: &CacheFolder,
) -> anyhow::Result<Cow<'a, Path>> {
    match address(argument)? {
        None => Ok(argument.into()),
        Some(Address::Hub(repository)) => fetch(&repository, cache_folder).map(Into::into),
        Some(Address::Url(url)) => {
            let message = format!("`{url}` cannot be converted");
            Err(Hinted::new(message, "a checkpoint is a folder, or hf://owner/name[@revision]")
                .into())
        }
    }
}

fn fetch(
    repository: &Repository,
    cache_folder: &CacheFolder,
) -> anyhow::Result<std::path::PathBuf> {
    let cache = cache(cache_folder)?;
    let bar = Bar(progress::bytes(0, "downloading"));
    let (folder, offline) = download(&client()?, &cache, repository, &sidecars(), &bar)?;
    bar.0.finish_and_clear();
    if let Some(error) = offline {
        eprintln!("note: going on with what was downloaded before: {error}");
    }
    Ok(folder)
}

struct Bar(ProgressBar);

impl Progress for Bar {
    fn total(&self, bytes: u64) {
        self.0.set_length(bytes);
    }

    fn add(&self, bytes: u64) {
        self.0.inc(bytes);
    }
}
