//! Ctrl-C in a conversation: it ends a reply while there is one, and the program otherwise or when pressed again.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::SIGINT;
use signal_hook::flag;

/// What shells report for a program that Ctrl-C ended.
const EXIT_STATUS: i32 = 128 + SIGINT;

/// Watches for Ctrl-C.
pub(crate) struct Interrupt {
    /// Whether the next Ctrl-C ends the program. Each one sets it.
    armed: Arc<AtomicBool>,
}

impl Interrupt {
    /// Takes Ctrl-C over from the system.
    pub(crate) fn watch() -> std::io::Result<Self> {
        let armed = Arc::new(AtomicBool::new(true));
        // In this order: the first Ctrl-C in a reply finds it unset, the second finds it set.
        flag::register_conditional_shutdown(SIGINT, EXIT_STATUS, Arc::clone(&armed))?;
        flag::register(SIGINT, Arc::clone(&armed))?;
        Ok(Self { armed })
    }

    /// Runs `reply`, which Ctrl-C does not end, but [`Interrupt::go_on`] tells of it.
    pub(crate) fn during<T>(&self, reply: impl FnOnce() -> T) -> T {
        self.armed.store(false, Ordering::SeqCst);
        let result = reply();
        self.armed.store(true, Ordering::SeqCst);
        result
    }

    /// Whether a reply should go on.
    pub(crate) fn go_on(&self) -> ControlFlow<()> {
        if self.armed.load(Ordering::SeqCst) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}
