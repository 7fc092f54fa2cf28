//! Whatever a host does, nothing corrupt is used or kept, and the message says what to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use packlight_http::HttpError;
use tempfile::TempDir;

use super::host::{Answer, Asked, Host};
use super::{assert_sound, bundle, files, open, read_all};

/// Reads the bundle from a host with a fault.
#[track_caller]
fn read_from(host: &Host) -> Result<(), HttpError> {
    let cache = TempDir::new().unwrap();
    let read = open(&host.url(), cache.path()).and_then(|remote| read_all(&remote));
    assert_sound(cache.path());
    assert_eq!(read?, files(bundle()));
    Ok(())
}

fn host(script: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Host {
    Host::new(files(bundle()), script)
}

/// On the first request for each shard, or on every one.
fn first(answer: Answer) -> Host {
    host(
        move |asked| {
            if asked.is_shard() && asked.nth == 0 { answer.clone() } else { Answer::Honest }
        },
    )
}

fn always(answer: Answer) -> Host {
    host(move |asked| if asked.is_shard() { answer.clone() } else { Answer::Honest })
}

#[test]
fn a_good_host_is_asked_once_for_each_shard() {
    let host = host(|_| Answer::Honest);
    read_from(&host).unwrap();
    let shards = files(bundle()).keys().filter(|path| path.contains("params_shard")).count();
    assert!(shards > 5, "{shards} shards");
    assert_eq!(host.shard_requests(), shards);
    assert!(host.log().iter().all(|asked| !asked.headers.contains_key("authorization")));
    assert!(host.log().iter().all(|asked| asked.headers["accept-encoding"] == "identity"));
}

/// Downloads wait for answers more than for bytes: several are asked for at once, over connections that stay.
#[test]
fn several_files_come_at_once() {
    let (now, most) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&most);
    let host = host(move |asked| {
        if asked.is_shard() {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(30));
            now.fetch_sub(1, Ordering::SeqCst);
        }
        Answer::Honest
    });
    read_from(&host).unwrap();
    let seen = seen.load(Ordering::SeqCst);
    assert!((2..=4).contains(&seen), "{seen} at once");
    assert!(
        host.connections() <= 6,
        "{} connections for {} requests",
        host.connections(),
        host.log().len()
    );
}

#[test]
fn what_passes_is_waited_for() {
    let header = |value: &str| vec![("Retry-After", value.to_owned())];
    for answer in [
        Answer::Status(500, vec![]),
        Answer::Status(503, header("0")),
        Answer::Status(429, header("0")),
        Answer::Drop(0),
        Answer::Drop(5000),
        Answer::Stall(100),
        Answer::Flip,
    ] {
        let name = format!("{answer:?}");
        if let Err(error) = read_from(&first(answer)) {
            panic!("{name}: {error}");
        }
    }
}

/// After a connection is lost, only what is missing is asked for.
#[test]
fn a_download_goes_on_inside_a_file() {
    let host = first(Answer::Drop(5000));
    read_from(&host).unwrap();
    let log = host.log();
    let again: Vec<_> = log.iter().filter(|asked| asked.is_shard() && asked.nth > 0).collect();
    assert!(!again.is_empty());
    for asked in again {
        let size = files(bundle())[&asked.path].len();
        // A short shard was whole before the connection ended.
        assert_eq!(asked.headers["range"], format!("bytes=5000-{}", size - 1));
    }
}

#[test]
fn a_host_without_ranges_will_do() {
    read_from(&always(Answer::Whole)).unwrap();
    // Its files begin anew when they break off.
    let host = host(|asked| match (asked.is_shard(), asked.nth) {
        (true, 0) => Answer::Drop(5000),
        (true, _) => Answer::Whole,
        _ => Answer::Honest,
    });
    read_from(&host).unwrap();
}

#[test]
fn what_stays_wrong_is_named() {
    let header = |name, value: &str| vec![(name, value.to_owned())];
    let cases: [(Answer, &str, &str); 12] = [
        (Answer::Flip, "do not have the SHA-256", "upload it again"),
        (Answer::Drop(0), "breaks off at byte 0", "what was downloaded is kept"),
        (Answer::Stall(0), "breaks off at byte 0", "what was downloaded is kept"),
        (Answer::Shorter(1), "expected", "upload it again"),
        (Answer::Longer, "expected", "upload it again"),
        (Answer::Html, "HTML page", "hf://owner/name"),
        (Answer::Status(404, vec![]), "is not there (404)", "packlight.json"),
        (Answer::Status(403, vec![]), "refused (403)", "let anyone read"),
        (Answer::Status(500, vec![]), "status 500", "try later"),
        (
            Answer::Status(429, header("Retry-After", "3600")),
            "asks to wait 3600 s",
            "what was downloaded is kept",
        ),
        (
            Answer::With(header("Content-Encoding", "gzip")),
            "Content-Encoding gzip",
            "compression off",
        ),
        (Answer::Status(206, header("Content-Range", "bytes 7-9/*")), "Content-Range", "ranges"),
    ];
    for (answer, message, hint) in cases {
        let name = format!("{answer:?}");
        let error = read_from(&always(answer)).expect_err(&name);
        assert!(error.to_string().contains(message), "{name}: {error}");
        assert!(error.hint().unwrap().contains(hint), "{name}: {:?}", error.hint());
    }
}

/// A server that sends another range than the one asked for, after a connection was lost.
#[test]
fn wrong_ranges_are_refused() {
    for (range, message) in [
        ("bytes 0-99/100", "expected"),
        ("bytes 4999-9999/*", "answers with Content-Range"),
        ("bytes 5000-99999999/*", "answers with Content-Range"),
        ("nonsense", "answers with Content-Range"),
    ] {
        let host = host(move |asked| match (asked.is_shard(), asked.nth) {
            (true, 0) => Answer::Drop(5000),
            (true, _) => Answer::With(vec![("Content-Range", range.into())]),
            _ => Answer::Honest,
        });
        let error = read_from(&host).expect_err(range);
        assert!(error.to_string().contains(message), "{range}: {error}");
    }
}

#[test]
fn manifests_are_not_taken_from_anywhere() {
    let manifest = |answer: Answer| {
        host(move |asked| match asked.path.as_str() {
            "/packlight.json" => answer.clone(),
            _ => Answer::Honest,
        })
    };
    let error = read_from(&manifest(Answer::Html)).unwrap_err();
    assert!(matches!(error, HttpError::Html { .. }), "{error}");
    let error = read_from(&manifest(Answer::Flip)).unwrap_err();
    assert!(matches!(error, HttpError::Manifest(_)), "{error}");
    let cache = TempDir::new().unwrap();
    let nothing = manifest(Answer::Status(404, vec![]));
    assert!(open(&nothing.url(), cache.path()).unwrap().file("packlight.json").unwrap().is_none());
    assert_eq!(assert_sound(cache.path()), 0);
}

#[test]
fn redirects_are_followed_within_reason() {
    let target = host(|_| Answer::Honest);
    let to = |url: String| {
        move |asked: &Asked| {
            let location = vec![("Location", format!("{url}{}", &asked.path[1..]))];
            Answer::Status(302, location)
        }
    };
    read_from(&host(to(target.url()))).unwrap();
    let around = host(|asked| Answer::Status(307, vec![("Location", asked.path.clone())]));
    let error = read_from(&around).unwrap_err();
    assert!(matches!(error, HttpError::Redirects { .. }), "{error}");
}

#[test]
fn nobody_there_is_said_at_once() {
    let url = host(|_| Answer::Honest).url();
    let cache = TempDir::new().unwrap();
    let error = open(&url, cache.path()).unwrap_err();
    assert!(matches!(error, HttpError::Unreachable { .. }), "{error}");
}
