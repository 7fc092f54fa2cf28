//! Ctrl-C. In a conversation it ends a reply while there is one, and the program otherwise or when pressed again. While a
//! folder is being filled it ends the program, and nothing is lost: people should know.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::SIGINT;
use signal_hook::flag;

/// What shells report for a program that Ctrl-C ended.
const EXIT_STATUS: i32 = 128 + SIGINT;

/// How often it is looked whether Ctrl-C was pressed.
const LOOKS: Duration = Duration::from_millis(20);

/// From here on, Ctrl-C says how to go on before it ends the program.
pub(crate) fn says(how: String) -> std::io::Result<()> {
    let pressed = Arc::new(AtomicBool::new(false));
    flag::register(SIGINT, Arc::clone(&pressed))?;
    std::thread::spawn(move || {
        while !pressed.load(Ordering::SeqCst) {
            std::thread::sleep(LOOKS);
        }
        // What is unfinished has no name yet, so there is nothing to tidy up that the next run does not.
        eprintln!("\nstopped: {how}");
        std::process::exit(EXIT_STATUS);
    });
    Ok(())
}

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
