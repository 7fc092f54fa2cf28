//! What is downloaded once is kept, for other bundles and for days without a network.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use packlight_formats::digest::sha256;
use packlight_http::{Cache, HttpError, Kind};
use tempfile::TempDir;

use super::host::{Answer, Asked, Host};
use super::{assert_sound, bundle, files, open, read_all};
use crate::support::{command, ran};

fn honest() -> Host {
    Host::new(files(bundle()), |_| Answer::Honest)
}

fn chunks(cache: &Path) -> Vec<PathBuf> {
    let folders = fs_err::read_dir(cache.join("chunks")).unwrap();
    folders
        .flat_map(|folder| fs_err::read_dir(folder.unwrap().path()).unwrap())
        .map(|chunk| chunk.unwrap().path())
        .collect()
}

#[test]
fn a_second_visit_asks_only_whether_anything_changed() {
    let (host, cache) = (honest(), TempDir::new().unwrap());
    read_all(&open(&host.url(), cache.path()).unwrap()).unwrap();
    let before = host.log().len();
    assert_eq!(read_all(&open(&host.url(), cache.path()).unwrap()).unwrap(), files(bundle()));
    let after = &host.log()[before..];
    assert_eq!(after.len(), 1, "{after:?}");
    assert!(after[0].headers.contains_key("if-none-match"));
}

#[test]
fn bundles_share_what_is_the_same() {
    let cache = TempDir::new().unwrap();
    read_all(&open(&honest().url(), cache.path()).unwrap()).unwrap();
    let other = honest();
    read_all(&open(&other.url(), cache.path()).unwrap()).unwrap();
    assert_eq!(other.shard_requests(), 0);
}

#[test]
fn without_a_network_what_is_there_will_do() {
    let cache = TempDir::new().unwrap();
    let url = {
        let host = honest();
        read_all(&open(&host.url(), cache.path()).unwrap()).unwrap();
        host.url()
    };
    let remote = open(&url, cache.path()).unwrap();
    assert!(remote.offline().is_some());
    assert_eq!(read_all(&remote).unwrap(), files(bundle()));
    // What is missing is missed.
    let chunk = chunks(cache.path()).into_iter().max_by_key(|c| fs_err::metadata(c).unwrap().len());
    fs_err::remove_file(chunk.unwrap()).unwrap();
    assert!(open(&url, cache.path()).and_then(|remote| read_all(&remote)).is_err());
}

/// The host is there, but ill: what is known to be good is better than nothing.
#[test]
fn an_ill_host_is_as_good_as_none() {
    let cache = TempDir::new().unwrap();
    let address = {
        let host = honest();
        read_all(&open(&host.url(), cache.path()).unwrap()).unwrap();
        host.address()
    };
    let listener = TcpListener::bind(address).unwrap();
    let ill = Host::on(listener, files(bundle()), |_| Answer::Status(503, vec![]));
    let remote = open(&ill.url(), cache.path()).unwrap();
    assert!(remote.offline().is_some());
    assert_eq!(read_all(&remote).unwrap(), files(bundle()));
}

#[test]
fn a_damaged_cache_is_mended() {
    let (host, cache) = (honest(), TempDir::new().unwrap());
    read_all(&open(&host.url(), cache.path()).unwrap()).unwrap();
    for (i, chunk) in chunks(cache.path()).iter().enumerate() {
        match i % 3 {
            0 => fs_err::write(chunk, b"rot").unwrap(),
            1 => fs_err::remove_file(chunk).unwrap(),
            _ => {}
        }
    }
    assert_eq!(read_all(&open(&host.url(), cache.path()).unwrap()).unwrap(), files(bundle()));
    assert_sound(cache.path());
}

/// A download that was interrupted inside a shard goes on behind the chunks that it has.
#[test]
fn an_interrupted_download_goes_on() {
    let cache = TempDir::new().unwrap();
    let cut = Host::new(files(bundle()), |asked| match asked.is_shard() {
        true if asked.nth == 0 => Answer::Drop(5000),
        true => Answer::Status(404, vec![]),
        false => Answer::Honest,
    });
    assert!(read_all(&open(&cut.url(), cache.path()).unwrap()).is_err());
    let (held, host) = (assert_sound(cache.path()), honest());
    assert!(held > 2);
    assert_eq!(read_all(&open(&host.url(), cache.path()).unwrap()).unwrap(), files(bundle()));
    let log = host.log();
    assert!(log.iter().any(|asked| {
        asked.is_shard()
            && asked.headers.get("range").is_some_and(|range| range.starts_with("bytes=4096-"))
    }));
}

#[test]
fn two_readers_may_fill_one_cache() {
    let (host, cache) = (honest(), TempDir::new().unwrap());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let read = read_all(&open(&host.url(), cache.path()).unwrap()).unwrap();
                assert_eq!(read, files(bundle()));
            });
        }
    });
    assert_sound(cache.path());
}

/// The same as two processes, which know nothing of each other but the folder.
#[test]
fn two_processes_may_fill_one_cache() {
    let slow = |_: &Asked| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        Answer::Honest
    };
    let (host, cache) = (Host::new(files(bundle()), slow), TempDir::new().unwrap());
    let start = |place: &str| {
        let args = ["run", place, "--tokens", "5,6,7", "-n", "4", "--device", "cpu", "--json"];
        let mut command = command(args);
        command.arg("--cache").arg(cache.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let both = [start(&host.url()), start(&host.url())];
    let tokens = |child: std::process::Child| {
        ran(&child.wait_with_output().unwrap()).json()["tokens"].clone()
    };
    let [first, second] = both.map(tokens);
    assert_eq!(first, second);
    assert_eq!(first, tokens(start(bundle().to_str().unwrap())));
    assert!(host.connections() > 1);
    let held = assert_sound(cache.path());
    assert!(held > 2);
    // Whatever both had begun is finished or gone.
    assert_eq!(chunks(cache.path()).len(), held);
    assert_eq!(read_all(&open(&host.url(), cache.path()).unwrap()).unwrap(), files(bundle()));
}

/// A bundle of more than a terabyte: nothing of its weights is asked for.
#[test]
fn what_has_no_room_is_not_begun() {
    let mut distant = files(bundle());
    let mut manifest: serde_json::Value =
        serde_json::from_slice(&distant["/packlight.json"]).unwrap();
    // The largest chunks that a manifest may have; every file of this bundle is smaller.
    let (chunk, count) = (64_u64 << 20, 20_000_u64);
    manifest["chunk_bytes"] = chunk.into();
    for file in manifest["files"].as_array_mut().unwrap() {
        let path = file["path"].as_str().unwrap().to_owned();
        file["sha256"] = vec![sha256(&distant[&format!("/{path}")])].into();
        if path == "params_shard_0.bin" {
            let hashes: Vec<String> = (0..count).map(|i| format!("{i:064x}")).collect();
            file["bytes"] = (chunk * count).into();
            file["sha256"] = hashes.into();
        }
    }
    distant.insert("/packlight.json".into(), serde_json::to_vec(&manifest).unwrap());
    let (host, cache) = (Host::new(distant, |_| Answer::Honest), TempDir::new().unwrap());
    let free = fs4::available_space(cache.path()).unwrap();
    if free > chunk * count {
        eprintln!("SKIPPED: this disk has room for it all");
        return;
    }
    let remote = open(&host.url(), cache.path()).unwrap();
    remote.announce(&["params_shard_0.bin", "params_shard_1.bin"]);
    let error = remote.range("params_shard_0.bin", 0..10).unwrap_err();
    assert!(matches!(error, HttpError::NoSpace { .. }), "{error}");
    assert!(error.hint().unwrap().contains("--cache DIR"));
    assert_eq!(host.shard_requests(), 0);
    // What is small is still to be had.
    assert!(remote.file("tensor-cache.json").unwrap().is_some());
}

/// A few bytes anywhere cost one chunk, not the file.
#[test]
fn a_few_bytes_cost_a_chunk() {
    let (host, cache) = (honest(), TempDir::new().unwrap());
    let remote = open(&host.url(), cache.path()).unwrap();
    let all = files(bundle());
    let (path, bytes) = all
        .iter()
        .filter(|(path, _)| path.contains("params_shard"))
        .max_by_key(|f| f.1.len())
        .unwrap();
    assert!(bytes.len() > 3 * 4096);
    assert_eq!(remote.range(&path[1..], 8190..8195).unwrap(), bytes[8190..8195]);
    let asked: Vec<String> = host.log()[1..].iter().map(|a| a.headers["range"].clone()).collect();
    assert_eq!(asked, ["bytes=4096-8191", "bytes=8192-12287"]);
    assert_eq!(remote.range(&path[1..], 5000..12000).unwrap(), bytes[5000..12000]);
    assert_eq!(host.shard_requests(), 2);
    let end = bytes.len() as u64;
    assert!(remote.range(&path[1..], end - 1..end + 1).is_err());
}

/// The host has a new release: its manifest counts, its chunks are fetched, the old ones can go.
#[test]
fn a_new_release_replaces_the_old() {
    let folder = TempDir::new().unwrap();
    let cache = folder.path();
    let address = {
        let host = honest();
        read_all(&open(&host.url(), cache).unwrap()).unwrap();
        host.address()
    };
    let before = assert_sound(cache);
    let mut new = files(bundle());
    let mut manifest: serde_json::Value = serde_json::from_slice(&new["/packlight.json"]).unwrap();
    manifest["generator"]["version"] = "9.9.9".into();
    new.insert("/packlight.json".into(), serde_json::to_vec(&manifest).unwrap());
    let listener = TcpListener::bind(address).unwrap();
    let host = Host::on(listener, new.clone(), |_| Answer::Honest);
    assert_eq!(read_all(&open(&host.url(), cache).unwrap()).unwrap(), new);
    assert_eq!(host.shard_requests(), 0);
    assert_eq!(assert_sound(cache), before + 1);
    assert!(Cache::new(cache).limit(u64::MAX).unwrap().is_empty());
    assert_eq!(assert_sound(cache), before, "the old manifest is swept away");
}

#[test]
fn the_cache_is_listed_and_limited() {
    let folder = TempDir::new().unwrap();
    let cache = Cache::new(folder.path());
    assert!(cache.list().unwrap().is_empty());
    let (first, second) = (honest(), honest());
    read_all(&open(&first.url(), folder.path()).unwrap()).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    read_all(&open(&second.url(), folder.path()).unwrap()).unwrap();
    let names =
        |list: &[packlight_http::Cached]| list.iter().map(|c| c.name.clone()).collect::<Vec<_>>();
    let list = cache.list().unwrap();
    assert_eq!(names(&list), [second.url(), first.url()], "the latest used first");
    assert!(list.iter().all(|cached| cached.kind == Kind::Bundle));
    // Duplicates within a bundle are kept once; no bundle is larger than its files.
    let total: u64 = files(bundle()).values().map(|bytes| bytes.len() as u64).sum();
    assert!(list[0].bytes > total / 2 && list[0].bytes <= total, "{} of {total}", list[0].bytes);
    // What two bundles share counts once, so both stay.
    assert!(cache.limit(list[0].bytes).unwrap().is_empty());
    // Using the first again makes it the latest.
    std::thread::sleep(std::time::Duration::from_millis(20));
    open(&first.url(), folder.path()).unwrap();
    assert_eq!(names(&cache.list().unwrap()), [first.url(), second.url()]);
    assert_eq!(cache.limit(0).unwrap().len(), 2);
    assert_eq!(assert_sound(folder.path()), 0);
    assert!(cache.list().unwrap().is_empty());
}
