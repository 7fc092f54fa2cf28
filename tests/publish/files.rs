//! A folder as a store, and addresses that are none.

use std::path::Path;

use tempfile::TempDir;

use super::bundle;
use crate::packlight;
use crate::support::contents;

fn url(folder: &Path) -> String {
    format!("file://{}", folder.to_str().unwrap())
}

#[test]
fn a_folder_is_a_store() {
    let folder = TempDir::new().unwrap();
    let place = folder.path().join("a b/models");
    let url = url(&place).replace(' ', "%20");
    packlight!("publish", bundle("old-plain"), url, "--dry-run").ok();
    assert!(!folder.path().join("a b").exists());
    packlight!("publish", bundle("old-plain"), url).ok();
    assert!(contents(&place) == contents(&bundle("old-plain")));
    assert!(packlight!("verify", place, "--all").ok().starts_with("ok"));

    // Its files are read, so that one that has rotted is found and made good.
    let shard = place.join("params_shard_1.bin");
    let mut bytes = fs_err::read(&shard).unwrap();
    bytes[9] ^= 1;
    fs_err::write(&shard, bytes).unwrap();
    let mended = packlight!("publish", bundle("old-plain"), url, "--json").json();
    assert_eq!(mended["sent"], serde_json::json!(["params_shard_1.bin"]));
    assert!(contents(&place) == contents(&bundle("old-plain")));

    let refused = packlight!("publish", bundle("new-plain"), url).fails(2);
    assert!(refused.contains("--names hashed"), "{refused}");
    assert!(contents(&place) == contents(&bundle("old-plain")));
    fs_err::write(place.join("notes.txt"), "mine").unwrap();
    packlight!("publish", bundle("new-hashed"), url, "--prune").ok();
    let mut there = contents(&place);
    assert_eq!(there.remove("notes.txt").unwrap(), b"mine");
    assert!(there == contents(&bundle("new-hashed")));
}

/// The page lies beside the bundle and in folders below, and none of it is taken for a release's.
#[test]
fn a_page_goes_along() {
    let (folder, page) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    fs_err::create_dir(page.path().join("page")).unwrap();
    fs_err::write(page.path().join("index.html"), "<!doctype html>").unwrap();
    fs_err::write(page.path().join("page/a.js"), "1").unwrap();
    let (url, web) = (url(folder.path()), format!("--web={}", page.path().display()));
    let published = packlight!("publish", bundle("old-hashed"), url, web, "--json").json();
    let sent = published["sent"].as_array().unwrap();
    // The page comes last, when the bundle is there.
    assert_eq!(sent[sent.len() - 3], "packlight.json");
    assert_eq!(fs_err::read(folder.path().join("page/a.js")).unwrap(), b"1");

    fs_err::write(page.path().join("page/a.js"), "2").unwrap();
    let again = packlight!("publish", bundle("old-hashed"), url, web, "--json").json();
    assert_eq!(again["sent"], serde_json::json!(["page/a.js"]));
    packlight!("publish", bundle("new-hashed"), url, "--prune").ok();
    assert_eq!(fs_err::read(folder.path().join("index.html")).unwrap(), b"<!doctype html>");
    assert_eq!(fs_err::read(folder.path().join("page/a.js")).unwrap(), b"2");
}

#[test]
fn what_is_no_store_is_said() {
    let mut said = String::new();
    for url in [
        "https://bucket.example/models",
        "models",
        "ftp://host/models",
        "s3://KEYID:HIDDEN@bucket/models",
        "s3://KEYID:HID/DEN?HIDDEN@bucket/models",
        "abfss://container:HIDDEN@account.dfs.core.windows.net/models",
        "KEYID:HIDDEN@bucket/models",
        "s3://bucket/models?X-Amz-Signature=HIDDEN",
        "az://container/models",
    ] {
        let mut command =
            crate::support::command(["publish", bundle("old-plain").to_str().unwrap(), url]);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("AZURE_") {
                command.env_remove(name);
            }
        }
        said += &crate::support::ran(&command.output().unwrap()).fails(2);
    }
    assert!(!said.contains("HIDDEN") && !said.contains("KEYID"), "{said}");
    insta::assert_snapshot!("no_store", said);
}
