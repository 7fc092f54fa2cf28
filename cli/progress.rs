//! Progress bars on stderr, where it is a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar over bytes, with speed and time left; draws nothing where stderr is no terminal.
pub(crate) fn bytes(total: u64, message: &'static str) -> ProgressBar {
    bar(total, message, "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta} left")
}

/// A bar over work of no particular unit, with time left.
pub(crate) fn work(total: u64, message: &'static str) -> ProgressBar {
    bar(total, message, "{msg} {wide_bar} {percent} % {eta} left")
}

fn bar(total: u64, message: &'static str, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(message);
    bar
}
