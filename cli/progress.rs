//! Progress bars on stderr, where it is a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar over bytes, with speed and time left; draws nothing where stderr is no terminal.
pub(crate) fn bytes(total: u64, message: &'static str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    let template = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(message);
    bar
}
