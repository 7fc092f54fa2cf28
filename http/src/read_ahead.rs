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

    fn take(&self) -> Option<String> {
        let mut state = self.state();
        let path = if state.stopped { None } else { state.waiting.pop_front() }?;
        state.busy.insert(path.clone());
        Some(path)
    }

    fn done(&self, path: &str, result: Result<(), HttpError>) {
        let mut state = self.state();
        state.busy.remove(path);
        if let Err(error) = result {
            state.failed.insert(path.into(), error);
        }
        self.changed.notify_all();
    }
}

impl Remote {
    /// Begins to fetch files that will be read, in that order.
    pub fn announce(&self, paths: &[&str]) {
        let known = |path: &&&str| {
            self.shared.manifest.as_ref().is_some_and(|manifest| manifest.file(path).is_some())
        };
        let paths: Vec<String> =
            paths.iter().filter(known).map(|path| (*path).to_owned()).collect();
        let count = CONNECTIONS.min(paths.len());
        self.shared.queue.state().waiting.extend(paths);
        for _ in 0..count {
            let shared = Arc::clone(&self.shared);
            std::thread::spawn(move || fetch(&shared));
        }
    }
}

fn fetch(shared: &Shared) {
    while let Some(path) = shared.queue.take() {
        let file = shared.manifest.as_ref().and_then(|manifest| manifest.file(&path));
        let result = file.map_or(Ok(()), |file| {
            shared.obtain(file, 0..file.sha256.len(), || shared.queue.stopped())
        });
        shared.queue.done(&path, result);
    }
}

/// Nobody waits for what comes after.
impl Drop for Remote {
    fn drop(&mut self) {
        self.shared.queue.state().stopped = true;
    }
}
