//! Prints every kernel's WGSL as JSON, `[{name, needs_nothing, source}]`, for compilers other than naga to look at.
#![expect(clippy::print_stdout, reason = "that is all it does")]

use packlight_runner::kernels::KERNELS;
use serde_json::{Value, json};

fn main() {
    let kernels = KERNELS.iter().map(|kernel| {
        let (name, source) = (kernel.name, kernel.source.concat());
        json!({ "name": name, "needs_nothing": kernel.needs.is_empty(), "source": source })
    });
    println!("{}", kernels.collect::<Value>());
}
