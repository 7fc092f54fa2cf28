//! The files of the page that runs a bundle in a browser (`web/`): those that this binary was built with, or a folder's.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use packlight_http::PageFile;

use crate::report::Hinted;

include!(concat!(env!("OUT_DIR"), "/page.rs"));

/// Where the page comes from.
#[derive(Clone, Debug)]
pub(crate) enum Page {
    /// It was there when this binary was built.
    Carried,
    /// A folder that `web/build` has made.
    Folder(PathBuf),
}

impl From<OsString> for Page {
    /// `--web=DIR`, or `--web` alone.
    fn from(folder: OsString) -> Self {
        if folder.is_empty() { Self::Carried } else { Self::Folder(folder.into()) }
    }
}

impl Page {
    /// Its files under the paths that they have on a host, beside a bundle's; none of them has a bundle file's name.
    pub(crate) fn files(&self) -> anyhow::Result<Vec<PageFile>> {
        let mut files = Vec::new();
        match self {
            Self::Folder(folder) => collect(folder, "", &mut files)?,
            Self::Carried => {
                files.extend(BUILT.iter().map(|&(path, bytes)| file(path, bytes.to_vec())));
            }
        }
        if files.iter().any(|file| file.path == "index.html") {
            return Ok(files);
        }
        let message = match self {
            Self::Folder(folder) => format!("there is no index.html in `{}`", folder.display()),
            Self::Carried => "this packlight was built without the page".into(),
        };
        let hint = "run web/build in packlight's source and build packlight again, or give a folder: --web=web/dist";
        Err(Hinted::new(message, hint).into())
    }
}

fn collect(folder: &Path, prefix: &str, files: &mut Vec<PageFile>) -> anyhow::Result<()> {
    let entries = fs_err::read_dir(folder).context("the page cannot be read")?;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with('.') {
            continue;
        }
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), &format!("{prefix}{name}/"), files)?;
        } else {
            files.push(file(&format!("{prefix}{name}"), fs_err::read(entry.path())?));
        }
    }
    Ok(())
}

fn file(path: &str, bytes: Vec<u8>) -> PageFile {
    PageFile { path: path.into(), media_type: media_type(path), bytes }
}

fn media_type(path: &str) -> &'static str {
    match path.rsplit_once('.').map_or("", |(_, extension)| extension) {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "wasm" => "application/wasm",
        _ => packlight_pack::media_type(path),
    }
}
