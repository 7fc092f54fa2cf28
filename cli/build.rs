//! Carries the page in the binary, where `web/build` has made it: a list of its files for cli/page.rs.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() -> std::io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let dist = root.join("web/dist");
    println!("cargo::rerun-if-changed={}", dist.display());
    let mut files = Vec::new();
    find(&dist, &mut files)?;
    files.sort();
    let mut list = String::from("const BUILT: &[(&str, &[u8])] = &[\n");
    for file in files {
        let names = file.strip_prefix(&dist).into_iter().flat_map(Path::iter);
        let path: Vec<_> = names.map(|name| name.to_string_lossy()).collect();
        let place = file.to_string_lossy();
        let _ = writeln!(list, "    ({:?}, include_bytes!({place:?})),", path.join("/"));
    }
    list += "];\n";
    fs::write(PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("page.rs"), list)
}

fn find(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        // What a build is only watched by is no file of the page.
        if entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        if entry.file_type()?.is_dir() {
            find(&entry.path(), files)?;
        } else {
            files.push(entry.path());
        }
    }
    Ok(())
}
