//! The one memory map, and with it the only `unsafe` of the project.

use std::ops::Range;
use std::path::Path;

use fs_err::File;
use memmap2::Mmap;

/// A file of the checkpoint, mapped read-only.
#[derive(Debug)]
pub(crate) struct Map(Mmap);

impl Map {
    /// Maps a file.
    ///
    /// The contract of the map: nobody changes or truncates the checkpoint while it is being converted. A change would
    /// show as wrong weights and a truncation as SIGBUS; neither can be prevented from inside a process, which is why
    /// mapping is `unsafe`. We only ever read, through shared slices of plain bytes.
    pub(crate) fn open(path: &Path) -> std::io::Result<Self> {
        let file = File::open(path)?;
        #[expect(unsafe_code, reason = "the one memory map")]
        // SAFETY: see the contract above; any bit pattern is a valid byte.
        let map = unsafe { Mmap::map(file.file()) }?;
        Ok(Self(map))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Tells the system that a range has been read for the last time, so that the pages of a large file do not stay
    /// counted as ours. Only whole pages inside the range are let go: their neighbours may still be in use.
    pub(crate) fn release(&self, range: Range<u64>) {
        #[cfg(unix)]
        {
            const PAGE: u64 = 4096;
            let (start, end) = (range.start.next_multiple_of(PAGE), range.end / PAGE * PAGE);
            let (Ok(start), Ok(end)) = (usize::try_from(start), usize::try_from(end)) else {
                return;
            };
            if start < end {
                #[expect(unsafe_code, reason = "the one memory map")]
                // SAFETY: the map is read-only and backed by a file, so a dropped page is read again, unchanged, on its
                // next use. A failure costs memory only.
                let _ = unsafe {
                    self.0.unchecked_advise_range(
                        memmap2::UncheckedAdvice::DontNeed,
                        start,
                        end - start,
                    )
                };
            }
        }
        #[cfg(not(unix))]
        let _ = range;
    }
}
