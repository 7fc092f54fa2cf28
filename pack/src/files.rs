//! Where the files of a bundle are read from.

use std::io::{self, Read};
use std::path::Path;

use fs_err::File;

/// A place that holds the files of a bundle: a folder, or something that a caller knows how to read.
pub trait Files: Sync {
    /// What to call it.
    fn place(&self) -> String;

    /// A file from its beginning. `bytes` is its length, where a manifest gives one.
    ///
    /// `NotFound` says that there is none, `InvalidData` that what is there is something else.
    fn open(&self, path: &str, bytes: Option<u64>) -> io::Result<Box<dyn Read + '_>>;

    /// The size of a file, where it can be told without reading it.
    fn size(&self, path: &str) -> io::Result<Option<u64>>;

    /// The names of all files, where they can be listed.
    fn names(&self) -> io::Result<Option<Vec<String>>>;
}

impl Files for Path {
    fn place(&self) -> String {
        self.display().to_string()
    }

    fn open(&self, path: &str, _bytes: Option<u64>) -> io::Result<Box<dyn Read + '_>> {
        Ok(Box::new(File::open(self.join(path))?))
    }

    fn size(&self, path: &str) -> io::Result<Option<u64>> {
        Ok(Some(fs_err::metadata(self.join(path))?.len()))
    }

    fn names(&self) -> io::Result<Option<Vec<String>>> {
        crate::folder::names(self).map(Some)
    }
}
