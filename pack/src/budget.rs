//! How many bytes may wait for slower threads.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Bytes that may be held at a time.
pub(crate) struct Budget {
    most: usize,
    held: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    bytes: Mutex<usize>,
    fewer: Condvar,
}

/// Some of them, until it is dropped.
pub(crate) struct Held {
    bytes: Vec<u8>,
    held: Arc<Shared>,
}

impl Budget {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, held: Arc::default() }
    }

    /// Waits until there is room. What is larger than the budget has room once nothing else is held.
    pub(crate) fn hold(&self, bytes: Vec<u8>) -> Held {
        let full = |held: &mut usize| *held > 0 && *held + bytes.len() > self.most;
        let held = self.held.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut held =
            self.held.fewer.wait_while(held, full).unwrap_or_else(PoisonError::into_inner);
        *held += bytes.len();
        Held { bytes, held: Arc::clone(&self.held) }
    }
}

impl Held {
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        *self.held.bytes.lock().unwrap_or_else(PoisonError::into_inner) -= self.bytes.len();
        self.held.fewer.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::time::Duration;

    use super::*;

    #[test]
    fn who_would_hold_too_much_waits_until_others_let_go() {
        let budget = Budget::new(10);
        let (six, four) = (budget.hold(vec![0; 6]), budget.hold(vec![0; 4]));
        let (done, wait) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Larger than the whole budget.
                let all = budget.hold(vec![0; 11]);
                done.send(all.as_slice().len()).expect("is waited for");
            });
            drop(six);
            let waits = wait.recv_timeout(Duration::from_millis(100));
            assert_eq!(waits, Err(RecvTimeoutError::Timeout));
            drop(four);
            assert_eq!(wait.recv(), Ok(11));
        });
    }
}
