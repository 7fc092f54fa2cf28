//! Ctrl-C while a folder is being filled: nothing is lost, and people should know.

/// Exit status of a command that SIGINT has ended, as shells report it.
const INTERRUPTED: i32 = 130;

/// From here on, Ctrl-C says how to go on before it ends the process.
pub(crate) fn says(how: String) -> anyhow::Result<()> {
    // What is unfinished has no name yet, so there is nothing to tidy up that the next run does not.
    ctrlc::set_handler(move || {
        eprintln!("\nstopped: {how}");
        std::process::exit(INTERRUPTED);
    })?;
    Ok(())
}
