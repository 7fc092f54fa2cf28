//! `packlight serve`: a good host, and one that gives nothing away.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use packlight_formats::digest::sha256;
use tempfile::TempDir;

use super::{bundle, files};
use crate::packlight;

/// A running server, which ends with the test.
pub(super) struct Serving {
    child: Child,
    pub(super) url: String,
}

impl Serving {
    pub(super) fn start(folder: &Path) -> Self {
        Self::with(folder, &[])
    }

    fn with(folder: &Path, options: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_packlight"))
            .args(["serve", folder.to_str().unwrap(), "--port", "0"])
            .args(options)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        Self { child, url: url.trim().into() }
    }

    /// A request as it is, and the whole answer.
    fn ask(&self, method: &str, path: &str, headers: &str) -> (String, Vec<u8>) {
        let address = self.url.strip_prefix("http://").unwrap().trim_end_matches('/');
        let mut stream = TcpStream::connect(address).unwrap();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
        let body = answer.split_off(end + 4);
        (String::from_utf8(answer).unwrap().to_ascii_lowercase(), body)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[track_caller]
fn assert_has(head: &str, lines: &[&str]) {
    for line in lines {
        assert!(head.contains(&format!("{line}\r\n")), "no `{line}` in\n{head}");
    }
}

#[test]
fn files_are_sent_as_a_page_wants_them() {
    let server = Serving::start(bundle());
    let shard = &files(bundle())["/params_shard_0.bin"];
    let (head, body) = server.ask("GET", "/params_shard_0.bin", "");
    assert!(head.starts_with("http/1.1 200"), "{head}");
    assert_eq!(&body, shard);
    let length = format!("content-length: {}", shard.len());
    assert_has(
        &head,
        &[
            &length,
            "accept-ranges: bytes",
            "access-control-allow-origin: *",
            "content-type: application/octet-stream",
            "x-content-type-options: nosniff",
        ],
    );
    let (json, _) = server.ask("GET", "/packlight.json", "");
    assert_has(&json, &["content-type: application/json"]);
    // What WebLLM asks for, given the server's address.
    assert_eq!(server.ask("GET", "/resolve/main/params_shard_0.bin", "").1, *shard);
    let (head, body) = server.ask("HEAD", "/params_shard_0.bin", "");
    assert_has(&head, &[&length]);
    assert!(body.is_empty());
}

#[test]
fn ranges_and_conditions_are_kept() {
    let server = Serving::start(bundle());
    let shard = &files(bundle())["/params_shard_0.bin"];
    let total = shard.len();
    let ask = |headers: &str| server.ask("GET", "/params_shard_0.bin", headers);
    let (head, body) = ask("Range: bytes=10-19\r\n");
    assert!(head.starts_with("http/1.1 206"), "{head}");
    assert_has(&head, &[&format!("content-range: bytes 10-19/{total}"), "content-length: 10"]);
    assert_eq!(body, shard[10..20]);
    assert_eq!(ask("Range: bytes=-5\r\n").1, shard[total - 5..]);
    let (head, body) = ask("Range: bytes=9999999-\r\n");
    assert!(head.starts_with("http/1.1 416") && body.is_empty(), "{head}");
    assert_has(&head, &[&format!("content-range: bytes */{total}")]);
    let tag = head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap().to_owned();
    let (head, body) = ask(&format!("If-None-Match: {tag}\r\n"));
    assert!(head.starts_with("http/1.1 304") && body.is_empty(), "{head}");
    // The file has changed since: its range would not fit what the client has.
    let (head, body) = ask("Range: bytes=10-19\r\nIf-Range: \"other\"\r\n");
    assert!(head.starts_with("http/1.1 200") && body == *shard, "{head}");
}

#[test]
fn other_origins_get_leave() {
    let server = Serving::start(bundle());
    let (head, body) = server.ask("OPTIONS", "/params_shard_0.bin", "Origin: https://a.b\r\n");
    assert!(head.starts_with("http/1.1 204") && body.is_empty(), "{head}");
    assert!(head.contains("access-control-allow-headers: range"), "{head}");
    assert_has(&head, &["access-control-allow-methods: get, head, options"]);
    for method in ["POST", "PUT", "DELETE", "TRACE"] {
        let (head, _) = server.ask(method, "/packlight.json", "");
        assert!(head.starts_with("http/1.1 405"), "{method}: {head}");
    }
}

#[test]
fn nothing_but_the_bundle_is_sent() {
    let folder = TempDir::new().unwrap();
    let inside = folder.path().join("bundle");
    fs_err::create_dir_all(inside.join("sub")).unwrap();
    for file in fs_err::read_dir(bundle()).unwrap().map(|entry| entry.unwrap().path()) {
        fs_err::copy(&file, inside.join(file.file_name().unwrap())).unwrap();
    }
    fs_err::write(folder.path().join("secret"), b"secret").unwrap();
    fs_err::write(inside.join("sub/secret"), b"secret").unwrap();
    fs_err::write(inside.join("stray.json"), b"secret").unwrap();
    #[cfg(unix)]
    for (link, target) in [("out", "../secret"), ("up", ".."), ("down", "sub/secret")] {
        std::os::unix::fs::symlink(target, inside.join(link)).unwrap();
    }
    let server = Serving::start(&inside);
    assert!(server.ask("GET", "/mlc-chat-config.json", "").0.starts_with("http/1.1 200"));
    for path in [
        "/stray.json",
        "/../secret",
        "/%2e%2e/secret",
        "/..%2fsecret",
        "/%2e%2e%2fsecret",
        "/..%5csecret",
        "/..\\secret",
        "//etc/passwd",
        "/%2fetc%2fpasswd",
        "/etc/passwd",
        "/resolve/main/../../../secret",
        "/resolve/main//etc/passwd",
        "/mlc-chat-config.json%00",
        "/params_shard_0%00.bin",
        "/./mlc-chat-config.json",
        "/sub/secret",
        "/sub",
        "/.",
        "/..",
        "/",
        "/%ff",
        "/out",
        "/up",
        "/up/secret",
        "/down",
        "http://x/../secret",
        "*",
    ] {
        let (head, body) = server.ask("GET", path, "");
        assert!(head.starts_with("http/1.1 4"), "{path}: {head}");
        assert!(!body.windows(6).any(|window| window == b"secret"), "{path}");
    }
}

/// As `huggingface_hub` keeps what it downloads.
#[test]
#[cfg(unix)]
fn a_bundle_of_links_is_served() {
    let folder = TempDir::new().unwrap();
    let (blobs, snapshot) = (folder.path().join("blobs"), folder.path().join("snapshots/0123"));
    for folder in [&blobs, &snapshot] {
        fs_err::create_dir_all(folder).unwrap();
    }
    let all = files(bundle());
    for (path, bytes) in &all {
        let blob = sha256(bytes);
        fs_err::write(blobs.join(&blob), bytes).unwrap();
        let link = Path::new("../../blobs").join(blob);
        std::os::unix::fs::symlink(link, snapshot.join(&path[1..])).unwrap();
    }
    let server = Serving::start(&snapshot);
    for (path, bytes) in &all {
        assert!(server.ask("GET", path, "").1 == *bytes, "{path}");
    }
}

/// Without packlight.json: what MLC-LLM's names are, and shards that its manifest lists.
#[test]
fn a_plain_bundle_is_served() {
    let plain = crate::support::copy(bundle());
    fs_err::remove_file(plain.path().join("packlight.json")).unwrap();
    for stray in ["params_shard_99.bin", "id_rsa", "notes.json"] {
        fs_err::write(plain.path().join(stray), b"secret").unwrap();
    }
    let server = Serving::start(plain.path());
    for (path, bytes) in files(plain.path()) {
        let (head, body) = server.ask("GET", &path, "");
        let stray = bytes == b"secret";
        assert_eq!(head.starts_with("http/1.1 404"), stray, "{path}: {head}");
        assert!(stray || body == bytes, "{path}");
    }
}

/// Connections cost threads, so there are only so many; who comes later waits until an idle one is closed.
#[test]
#[cfg(target_os = "linux")]
fn many_connections_need_few_threads() {
    let server = Serving::start(bundle());
    let address = server.url.strip_prefix("http://").unwrap().trim_end_matches('/').to_owned();
    let idle: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(&address).unwrap()).collect();
    std::thread::sleep(std::time::Duration::from_millis(300));
    let threads = format!("/proc/{}/task", server.child.id());
    let threads = fs_err::read_dir(threads).unwrap().count();
    assert!(threads <= 40, "{threads} threads for 200 connections");
    drop(idle);
    assert!(server.ask("GET", "/packlight.json", "").0.starts_with("http/1.1 200"));
}

/// Several requests over one connection, and one that never ends its head.
#[test]
fn connections_are_kept_and_nonsense_ends_them() {
    let server = Serving::start(bundle());
    let address = server.url.strip_prefix("http://").unwrap().trim_end_matches('/');
    let mut stream = BufReader::new(TcpStream::connect(address).unwrap());
    for _ in 0..3 {
        let request = format!("HEAD /packlight.json HTTP/1.1\r\nHost: {address}\r\n\r\n");
        stream.get_mut().write_all(request.as_bytes()).unwrap();
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        assert_eq!(line, "HTTP/1.1 200 OK\r\n");
        while line != "\r\n" {
            line.clear();
            stream.read_line(&mut line).unwrap();
        }
    }
    let mut endless = TcpStream::connect(address).unwrap();
    // The server hangs up before all is written.
    let _ = endless.write_all(&vec![b'a'; 1 << 20]);
    let mut answer = Vec::new();
    let _ = endless.read_to_end(&mut answer);
    assert!(answer.is_empty());
    assert!(server.ask("GET", "/packlight.json", "").0.starts_with("http/1.1 200"));
}

#[test]
fn a_page_is_served_beside_the_bundle() {
    let page = TempDir::new().unwrap();
    fs_err::create_dir_all(page.path().join("page")).unwrap();
    for (path, text) in [
        ("index.html", "<!doctype html>"),
        ("page/a.js", "1"),
        ("page/b.wasm", "\0asm"),
        (".hidden", "secret"),
        ("packlight.json", "not the bundle's"),
    ] {
        fs_err::write(page.path().join(path), text).unwrap();
    }
    let with = format!("--web={}", page.path().display());
    let server = Serving::with(bundle(), &[&with]);
    for (path, media_type, text) in [
        ("/", "text/html; charset=utf-8", "<!doctype html>"),
        ("/?bundle=x", "text/html; charset=utf-8", "<!doctype html>"),
        ("/page/a.js", "text/javascript; charset=utf-8", "1"),
        // Browsers compile it while it comes only under this type.
        ("/page/b.wasm", "application/wasm", "\0asm"),
    ] {
        let (head, body) = server.ask("GET", path, "");
        assert_has(&head, &[&format!("content-type: {media_type}")]);
        assert_eq!(body, text.as_bytes(), "{path}");
    }
    for path in ["/.hidden", "/page/", "/page"] {
        assert!(server.ask("GET", path, "").0.starts_with("http/1.1 404"), "{path}");
    }
    let manifest = &files(bundle())["/packlight.json"];
    assert_eq!(server.ask("GET", "/packlight.json", "").1, *manifest);
}

#[test]
fn what_cannot_be_served_is_said() {
    let no_page = packlight!("serve", bundle(), "--web=/nonexistent").fails(2);
    assert!(no_page.contains("/nonexistent"), "{no_page}");
    let empty = TempDir::new().unwrap();
    let with = format!("--web={}", empty.path().display());
    let no_page = packlight!("serve", bundle(), with).fails(2);
    assert!(no_page.contains("no index.html") && no_page.contains("web/build"), "{no_page}");
    let missing = packlight!("serve", "/nonexistent").fails(2);
    assert!(missing.contains("is not a folder") && missing.contains("hint:"), "{missing}");
    let stranger = packlight!("serve", empty.path()).fails(2);
    assert!(stranger.contains("holds no bundle") && stranger.contains("hint:"), "{stranger}");
    let damaged = crate::support::copy(bundle());
    fs_err::write(damaged.path().join("packlight.json"), "{}").unwrap();
    let damaged = packlight!("serve", damaged.path()).fails(2);
    assert!(damaged.contains("packlight.json`: ") && damaged.contains("hint:"), "{damaged}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let busy = packlight!("serve", bundle(), "--port", port).fails(2);
    assert!(busy.contains(&format!("port {port}")) && busy.contains("--port 0"), "{busy}");
}
