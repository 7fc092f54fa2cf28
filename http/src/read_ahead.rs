//! Reading ahead: files that will be needed are fetched over several connections while earlier ones are used.
//!
//! What arrives waits in the cache, on disk, so that memory is bounded by a chunk per connection.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::error::HttpError;
use crate::remote::{Remote, Shared};

/// Connections at once: as many as WebLLM has, which hosts therefore bear.
pub(crate) const CONNECTIONS: usize = 4;

/// Which files are to come, and which are on their way.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Files to fetch, in order.
    waiting: VecDeque<String>,
    /// Files that are being fetched.
    busy: BTreeSet<String>,
    failed: BTreeMap<String, HttpError>,
    stopped: bool,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a chunk of a file is ready, or the file is no longer on its way.
    pub(crate) fn wait(&self, path: &str, ready: impl Fn() -> bool) -> Result<(), HttpError> {
        let mut state = self.state();
        loop {
            if let Some(error) = state.failed.remove(path) {
                return Err(error);
            }
            let coming = state.busy.contains(path) || state.waiting.iter().any(|file| file == path);
            if !coming || ready() {
                return Ok(());
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A chunk has become ready.
    pub(crate) fn notify(&self) {
        // Under the lock, so that nobody is between looking and waiting.
        let _state = self.state();
        self.changed.notify_all();
    }

    fn stopped(&self) -> bool {
        self.state().stopped
    }

    fn take(&self) -> Option<Busy<'_>> {
        let mut state = self.state();
        let path = if state.stopped { None } else { state.waiting.pop_front() }?;
        state.busy.insert(path.clone());
        Some(Busy { queue: self, path })
    }
}

/// A file that is being fetched; when this goes, whatever the reason, nobody waits for it any more.
struct Busy<'a> {
    queue: &'a Queue,
    path: String,
}

impl Busy<'_> {
    fn fail(&self, error: HttpError) {
        self.queue.state().failed.insert(self.path.clone(), error);
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.queue.state().busy.remove(&self.path);
        self.queue.changed.notify_all();
    }
}

impl Remote {
    /// Begins to fetch files that will be read, in that order; where the cache has no room for them all, reading one
    /// says so.
    pub fn announce(&self, paths: &[&str]) {
        let known = |path: &&&str| {
            self.shared.manifest.as_ref().is_some_and(|manifest| manifest.file(path).is_some())
        };
        let paths: Vec<String> =
            paths.iter().filter(known).map(|path| (*path).to_owned()).collect();
        let needed = self.shared.missing(&paths);
        if self.shared.cache.require(needed).is_err() {
            let error = |path| Some((path, self.shared.cache.require(needed).err()?));
            self.shared.queue.state().failed.extend(paths.into_iter().filter_map(error));
            return;
        }
        let count = CONNECTIONS.min(paths.len());
        self.shared.queue.state().waiting.extend(paths);
        for _ in 0..count {
            let shared = Arc::clone(&self.shared);
            std::thread::spawn(move || fetch(&shared));
        }
    }
}

impl Shared {
    /// Bytes of chunks that these files have and the cache has not.
    fn missing(&self, paths: &[String]) -> u64 {
        let Some(manifest) = &self.manifest else { return 0 };
        let files = paths.iter().filter_map(|path| manifest.file(path));
        let chunks = files.flat_map(|file| file.chunks(manifest.chunk_bytes));
        let mut counted = BTreeSet::new();
        let missing = chunks.filter(|(_, hash)| counted.insert(*hash) && !self.cache.has(hash));
        missing.map(|(span, _)| span.end - span.start).sum()
    }
}

fn fetch(shared: &Shared) {
    while let Some(busy) = shared.queue.take() {
        let manifest = shared.manifest.as_ref();
        let Some(file) = manifest.and_then(|manifest| manifest.file(&busy.path)) else { continue };
        let chunks = 0..file.sha256.len();
        if let Err(error) = shared.obtain(file, chunks, || shared.queue.stopped()) {
            busy.fail(error);
        }
    }
}

/// Nobody waits for what comes after.
impl Drop for Remote {
    fn drop(&mut self) {
        self.shared.queue.state().stopped = true;
    }
}
