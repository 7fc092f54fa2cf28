//! What goes wrong: killed, refused, ill or overtaken. No reader ever notices.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::s3::{Answer, Asked, S3, SECRET};
use super::{bundle, identity, names, objects, publish, publishing, read, report, with_large_file};
use crate::support::{contents, copy, ran};

/// Publishes and ends the process, without a warning, once so many requests have met `pick`.
fn killed(server: &S3, bundle: &Path, pick: impl Fn(&Asked) -> bool, count: usize) {
    let mut child = publishing(server, bundle, "s3://bucket/m", &["--concurrency", "2"]);
    let mut child = child.stdout(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    while server.log().iter().filter(|asked| pick(asked)).count() < count {
        assert!(begun.elapsed() < Duration::from_mins(1), "{:?}", server.log());
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn what_was_sent_before_it_was_killed_is_not_sent_again() {
    for names_are in ["plain", "hashed"] {
        let server = S3::new(|asked| match asked.method.as_str() {
            "PUT" => Answer::Late(Duration::from_millis(50)),
            _ => Answer::Honest,
        });
        let bundle = bundle(&format!("old-{names_are}"));
        killed(&server, &bundle, |asked| asked.method == "PUT" && asked.is_shard(), 5);
        assert_eq!(read(&server.url("m")).unwrap(), None);
        // Give what was on its way the time to arrive.
        std::thread::sleep(Duration::from_millis(200));
        let there = objects(&server, "m");
        assert!(there.len() >= 3 && !there.contains_key("packlight.json"), "{:?}", there.keys());
        server.forget();
        let done = report(&server, &bundle, "m", &[]);
        for name in there.keys() {
            assert!(!names(&done["sent"]).contains(&name.as_str()), "{name}");
            assert!(!server.written().contains(name), "{name}");
        }
        assert!(objects(&server, "m") == contents(&bundle));
    }
}

/// A file that comes in parts appears when it is complete, and never half.
#[test]
fn half_an_object_is_none() {
    let is_part = |asked: &Asked| asked.query.contains("partNumber");
    let server = S3::new(move |asked| {
        if is_part(asked) { Answer::Late(Duration::from_millis(100)) } else { Answer::Honest }
    });
    let large = with_large_file("old-plain");
    killed(&server, large.path(), |asked| asked.query.contains("partNumber=2"), 1);
    assert!(!objects(&server, "m").contains_key("params_shard_99.bin"));
    let done = report(&server, large.path(), "m", &[]);
    assert!(names(&done["sent"]).contains(&"params_shard_99.bin"));
    assert!(objects(&server, "m") == contents(large.path()));
    server.forget();
    assert_eq!(report(&server, large.path(), "m", &[])["sent"], serde_json::json!([]));
}

/// Between files that clients look for by name and packlight.json: then back to the old release.
#[test]
fn names_that_stay_are_not_believed() {
    let (old, new) = (bundle("old-hashed"), bundle("new-hashed"));
    let server = S3::new(move |asked| match (asked.name(), asked.method.as_str()) {
        // Of the second release.
        ("packlight.json", "PUT") if asked.nth > 0 => Answer::Status(403, "AccessDenied"),
        _ => Answer::Honest,
    });
    publish(&server, &old, "m", &[]).ok();
    let before = objects(&server, "m");
    publish(&server, &new, "m", &[]).fails(2);
    assert_eq!(read(&server.url("m")).unwrap().unwrap().0, identity(&old));
    assert!(objects(&server, "m")["tensor-cache.json"] != before["tensor-cache.json"]);
    let done = report(&server, &old, "m", &["--prune"]);
    assert!(names(&done["sent"]).contains(&"tensor-cache.json"), "{done}");
    assert!(objects(&server, "m") == before);
}

#[test]
fn an_ill_server_is_asked_again() {
    let server = S3::new(|asked| match (asked.method.as_str(), asked.nth) {
        ("PUT", 0) if asked.is_shard() => Answer::Status(500, "InternalError"),
        ("PUT", 0) if asked.name() == "tensor-cache.json" => Answer::Lost,
        ("PUT", 0) => Answer::Status(503, "SlowDown"),
        ("GET", 0) if !asked.query.is_empty() => Answer::Status(429, "TooManyRequests"),
        _ => Answer::Honest,
    });
    publish(&server, &bundle("old-plain"), "m", &["--concurrency", "8"]).ok();
    assert!(objects(&server, "m") == contents(&bundle("old-plain")));
}

#[test]
fn a_refusal_switches_nothing_and_tells_no_secret() {
    let server = S3::new(|asked| match asked.name() {
        "params_shard_3.bin" if asked.writes() => Answer::Status(403, "AccessDenied"),
        _ => Answer::Honest,
    });
    let refused = publish(&server, &bundle("old-plain"), "m", &[]).fails(2);
    insta::assert_snapshot!("a_refusal", refused);
    assert!(!objects(&server, "m").contains_key("packlight.json"));
    assert!(!objects(&server, "m").contains_key("tensor-cache.json"));

    let server = S3::honest();
    let mut wrong = publishing(&server, &bundle("old-plain"), "s3://bucket/m", &[]);
    let wrong = ran(&wrong.env("AWS_SECRET_ACCESS_KEY", "quite another one").output().unwrap());
    let wrong = wrong.fails(2);
    assert!(wrong.contains("403 SignatureDoesNotMatch") && wrong.contains("hint: "), "{wrong}");
    assert!(!wrong.contains("quite another one"), "{wrong}");

    let mut none = publishing(&server, &bundle("old-plain"), "s3://bucket/m", &[]);
    none.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY");
    none.env("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1");
    let none = ran(&none.output().unwrap()).fails(2);
    assert!(none.contains("there are no credentials for `s3://bucket/m`"), "{none}");
    assert!(none.contains("hint: set AWS_ACCESS_KEY_ID"), "{none}");

    let mut missing = publishing(&server, &bundle("old-plain"), "s3://basket/m", &[]);
    let missing = ran(&missing.output().unwrap()).fails(2);
    assert!(missing.contains("there is no such bucket") && missing.contains("hint: "), "{missing}");
    assert!(server.log().iter().all(|asked| !asked.writes()));
}

#[test]
fn a_damaged_bundle_goes_nowhere() {
    let server = S3::honest();
    let damaged = copy(&bundle("old-plain"));
    let shard = damaged.path().join("params_shard_4.bin");
    let sound = fs_err::read(&shard).unwrap();
    let mut flipped = sound.clone();
    flipped[77] ^= 1;
    let refused = |bytes: &[u8]| {
        fs_err::write(&shard, bytes).unwrap();
        let error = publish(&server, damaged.path(), "m", &[]).fails(2);
        assert!(error.contains("`params_shard_4.bin`") && error.contains("hint: "), "{error}");
    };
    refused(&flipped);
    refused(&sound[1..]);
    fs_err::remove_file(damaged.path().join("packlight.json")).unwrap();
    let none = publish(&server, damaged.path(), "m", &[]).fails(2);
    assert!(none.contains("no packlight.json") && none.contains("packlight pack"), "{none}");
    assert_eq!(server.log().len(), 0, "nobody was even asked");
}

/// It was fine when it was verified. Each chunk is compared again as it is sent.
#[test]
fn a_bundle_that_changes_meanwhile_is_not_switched_to() {
    let changing = copy(&bundle("old-plain"));
    let shard = changing.path().join("params_shard_6.bin");
    let server = S3::new(move |asked| {
        if asked.method == "PUT" && asked.name() == "params_shard_0.bin" {
            let mut bytes = fs_err::read(&shard).unwrap();
            bytes[5] ^= 1;
            fs_err::write(&shard, bytes).unwrap();
        }
        Answer::Honest
    });
    let error = publish(&server, changing.path(), "m", &["--concurrency", "1"]).fails(2);
    assert!(error.contains("`params_shard_6.bin` is not what packlight.json says"), "{error}");
    assert!(!server.written().contains(&"params_shard_6.bin".into()));
    assert!(!objects(&server, "m").contains_key("packlight.json"));
}

/// Two publish to one prefix: whoever comes second finds that out before the switch.
#[test]
fn another_publish_meanwhile_is_noticed() {
    let other = fs_err::read(bundle("old-hashed").join("packlight.json")).unwrap();
    let folder = std::sync::Arc::new(std::sync::OnceLock::<std::path::PathBuf>::new());
    let place = std::sync::Arc::clone(&folder);
    let server = S3::new(move |asked| {
        if asked.method == "PUT" && asked.name() == "tensor-cache.json" {
            fs_err::write(place.get().unwrap().join("packlight.json"), &other).unwrap();
        }
        Answer::Honest
    });
    folder.set(server.objects("m")).unwrap();
    let error = publish(&server, &bundle("new-hashed"), "m", &[]).fails(2);
    assert!(error.contains("another publish has changed `packlight.json`"), "{error}");
    assert!(!server.written().contains(&"packlight.json".into()));
    assert!(!error.contains(SECRET));
}
