//! What is sent, in which order, and what a reader sees meanwhile.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tempfile::TempDir;

use super::s3::{Answer, Asked, S3};
use super::{bundle, identity, names, objects, publish, read, report};
use crate::packlight;
use crate::support::{contents, repo};

/// Position of the first and the last written object that a test picks.
fn span(written: &[String], pick: impl Fn(&str) -> bool) -> (usize, usize) {
    let at = |found: Option<usize>| found.unwrap();
    (at(written.iter().position(|n| pick(n))), at(written.iter().rposition(|n| pick(n))))
}

#[test]
fn a_plan_touches_nothing_and_says_everything() {
    let server = S3::honest();
    let plan = publish(&server, &bundle("old-plain"), "m", &["--dry-run"]).ok();
    assert!(plan.contains("weights    send  params_shard_0.bin"), "{plan}");
    let plan = report(&server, &bundle("old-plain"), "m", &["--dry-run"]);
    assert!(server.log().iter().all(|asked| !asked.writes()), "{:?}", server.log());
    assert!(!server.objects("m").exists());
    let files = contents(&bundle("old-plain"));
    let steps = plan["steps"].as_array().unwrap();
    assert_eq!(steps.len(), files.len());
    let last = steps.last().unwrap();
    assert_eq!((&last["path"], &last["stage"]), (&"packlight.json".into(), &"switch".into()));
    let total: usize = files.values().map(Vec::len).sum();
    assert_eq!(plan["bytes"], total);
}

#[test]
fn the_first_release_arrives_whole_and_in_order() {
    for names in ["plain", "hashed"] {
        let (server, bundle) = (S3::honest(), bundle(&format!("old-{names}")));
        let done = report(&server, &bundle, "models/m", &[]);
        assert_eq!(done["sha256"], identity(&bundle));
        assert_eq!(done["kept"], 0);
        assert!(objects(&server, "models/m") == contents(&bundle));
        let written = server.written();
        let shards = span(&written, |name| name.contains("params_shard"));
        let settings = span(&written, |name| name.starts_with("generation_config."));
        let manifests = span(&written, |name| name == "tensor-cache.json");
        assert!(shards.1 < settings.0 && shards.1 < manifests.0, "{written:?}");
        assert_eq!(written.last().unwrap(), "packlight.json");
        assert!(read(&server.url("models/m")).unwrap().is_some());

        // Again there is nothing to do, and nothing is read of what names its content.
        server.forget();
        let again = report(&server, &bundle, "models/m", &[]);
        assert_eq!(again["sent"], serde_json::json!([]));
        assert_eq!(again["kept"], contents(&bundle).len());
        assert!(server.log().iter().all(|asked| !asked.writes()));
        let heads = server.log().into_iter().filter(|asked| asked.method == "HEAD");
        assert_eq!(heads.filter(Asked::is_shard).count() == 0, names == "hashed");
    }
}

#[test]
fn objects_say_what_they_are_and_how_long_they_hold() {
    let server = S3::honest();
    publish(&server, &bundle("old-hashed"), "m", &[]).ok();
    let agent = ureq::Agent::new_with_defaults();
    for name in objects(&server, "m").keys() {
        let answer = agent.get(format!("{}{name}", server.url("m"))).call().unwrap();
        let header = |name: &str| {
            answer.headers().get(name).map_or("", |value| value.to_str().unwrap()).to_owned()
        };
        let kind =
            if name.contains(".bin") { "application/octet-stream" } else { "application/json" };
        assert_eq!(header("content-type"), kind, "{name}");
        assert_eq!(header("content-encoding"), "", "{name}");
        let fixed = name.split('.').count() == 2;
        let caching = if fixed { "no-cache" } else { "public, max-age=31536000, immutable" };
        assert_eq!(header("cache-control"), caching, "{name}");
    }
}

#[test]
fn names_that_stay_are_not_given_other_bytes() {
    let server = S3::honest();
    publish(&server, &bundle("old-plain"), "m", &[]).ok();
    let before = objects(&server, "m");
    server.forget();
    let refused = publish(&server, &bundle("new-plain"), "m", &[]).fails(2);
    insta::assert_snapshot!("another_release", refused.replace(&server.endpoint(), "[endpoint]"));
    publish(&server, &bundle("new-plain"), "m", &["--dry-run"]).fails(2);
    assert!(server.log().iter().all(|asked| !asked.writes()));
    assert!(objects(&server, "m") == before);
    // At a new prefix there is nothing in the way; below one that is taken, neither.
    publish(&server, &bundle("new-plain"), "m/v2", &[]).ok();
    assert!(objects(&server, "m/v2") == contents(&bundle("new-plain")));
    // A bundle of MLC's is a release, too.
    fs_err::remove_file(server.objects("m").join("packlight.json")).unwrap();
    let refused = publish(&server, &bundle("new-plain"), "m", &[]).fails(2);
    assert!(refused.contains("`tensor-cache.json` is not this bundle's"), "{refused}");
}

#[test]
fn a_release_over_another_leaves_it_whole_until_the_switch() {
    for old in ["old-hashed", "old-plain"] {
        let server = S3::honest();
        publish(&server, &bundle(old), "m", &[]).ok();
        server.forget();
        let done = report(&server, &bundle("new-hashed"), "m", &[]);
        let (old, new) = (contents(&bundle(old)), contents(&bundle("new-hashed")));
        let there = objects(&server, "m");
        for (name, bytes) in &new {
            assert!(there[name] == *bytes, "{name}");
        }
        // What readers of the old one may be reading is untouched before the switch.
        let written = server.written();
        let switch = written.iter().position(|name| name == "packlight.json").unwrap();
        let manifest: serde_json::Value = serde_json::from_slice(&old["packlight.json"]).unwrap();
        for file in manifest["files"].as_array().unwrap() {
            let path = file["path"].as_str().unwrap();
            if file.get("alias_of").is_none() && old[path] != there[path] {
                assert!(written.iter().position(|name| name == path).unwrap() > switch, "{path}");
            }
        }
        let stale: BTreeSet<&str> = names(&done["stale"]).into_iter().collect();
        let expected: BTreeSet<&str> =
            old.keys().filter(|name| !new.contains_key(*name)).map(String::as_str).collect();
        assert_eq!(stale, expected);
        assert!(!stale.is_empty());
    }
}

#[test]
fn pruning_takes_what_releases_left_and_nothing_else() {
    let server = S3::honest();
    publish(&server, &bundle("old-hashed"), "m", &[]).ok();
    let own = [
        ("notes.txt", "m"),
        ("data.0123456789abcdef.bin", "m"),
        ("params_shard_x.bin", "m"),
        ("params_shard_0.bin", "m/sub"),
        ("params_shard_0.bin", "other"),
    ];
    // Of an attempt that nobody ever finished.
    let lost = ["params_shard_7.0123456789abcdef.bin", "generation_config.0123456789abcdef.json"];
    let left = lost.map(|name| (name, "m"));
    for (name, folder) in own.into_iter().chain(left) {
        fs_err::create_dir_all(server.objects(folder)).unwrap();
        fs_err::write(server.objects(folder).join(name), name).unwrap();
    }
    let plan = report(&server, &bundle("new-hashed"), "m", &["--prune", "--dry-run"]);
    let done = report(&server, &bundle("new-hashed"), "m", &["--prune"]);
    assert_eq!(plan["pruned"], done["pruned"]);
    assert_eq!(done["stale"], serde_json::json!([]));
    let mut there = objects(&server, "m");
    for (name, folder) in own {
        assert!(server.objects(folder).join(name).exists(), "{folder}/{name}");
        if folder == "m" {
            there.remove(name);
        }
    }
    assert!(there == contents(&bundle("new-hashed")));
    for name in lost {
        assert!(names(&done["pruned"]).contains(&name), "{name}");
    }
    // Nothing goes before the switch.
    let log = server.log();
    let switch = log.iter().rposition(|a| a.method == "PUT" && a.name() == "packlight.json");
    let deletes = log.iter().position(|a| a.method == "DELETE" || a.query.contains("delete"));
    assert!(deletes.unwrap() > switch.unwrap());
    assert!(read(&server.url("m")).unwrap().is_some());
}

/// Somebody loads the model again and again while it is replaced. Each time it is one of the two, whole.
#[test]
fn a_reader_sees_the_old_release_or_the_new() {
    let server = S3::new(|asked| match asked.method.as_str() {
        "PUT" => Answer::Late(Duration::from_millis(30)),
        _ => Answer::Honest,
    });
    let (old, new) = (bundle("old-hashed"), bundle("new-hashed"));
    publish(&server, &old, "m", &[]).ok();
    let (url, done) = (server.url("m"), AtomicBool::new(false));
    let seen = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut seen = Vec::new();
                    while !done.load(Ordering::SeqCst) {
                        seen.push(read(&url).unwrap().unwrap().0);
                    }
                    seen.push(read(&url).unwrap().unwrap().0);
                    seen
                })
            })
            .collect();
        let ran = publish(&server, &new, "m", &["--concurrency", "2"]);
        done.store(true, Ordering::SeqCst);
        ran.ok();
        readers.into_iter().map(|reader| reader.join().unwrap()).collect::<Vec<_>>()
    });
    let (old, new) = (identity(&old), identity(&new));
    for seen in seen {
        let switch = seen.iter().position(|release| *release == new).unwrap();
        assert!(switch > 0, "nothing was read before the switch");
        assert!(seen[..switch].iter().all(|release| *release == old));
        assert!(seen[switch..].iter().all(|release| *release == new));
    }
}

#[test]
fn however_many_are_on_their_way_the_result_is_the_same() {
    let server = S3::honest();
    let large = super::with_large_file("old-plain");
    publish(&server, large.path(), "one", &["--concurrency", "1"]).ok();
    publish(&server, large.path(), "eight", &["--concurrency", "8"]).ok();
    assert!(objects(&server, "one") == contents(large.path()));
    assert!(objects(&server, "one") == objects(&server, "eight"));
    let parts = server.log().into_iter().filter(|asked| asked.query.contains("partNumber"));
    assert_eq!(parts.count(), 6, "two times 8, 8 and 4 MiB");
}

/// From checkpoint to answer: cut, published, probed and run from where a page would read it.
#[test]
fn a_bundle_in_parts_under_hashed_names_runs_from_its_address() {
    let (server, folder) = (S3::honest(), TempDir::new().unwrap());
    let bundle = folder.path().join("bundle");
    let cut = ["--max-file-bytes", "1MiB", "--names", "hashed"];
    packlight!("convert", repo("demo"), "-o", bundle, cut[0], cut[1], cut[2], cut[3]).ok();
    let parts = contents(&bundle).into_keys().filter(|name| name.contains(".part")).count();
    assert!(parts > 1, "{parts}");
    publish(&server, &bundle, "models/demo", &[]).ok();
    let url = server.url("models/demo");
    let probed = packlight!("probe", url, "--json").json();
    assert_eq!(probed["ok"], true, "{probed}");
    let checks = probed["checks"].as_array().unwrap();
    let passed = checks.iter().filter(|check| check["status"] == "pass").count();
    assert!(passed >= 12, "{probed}");
    let args = ["-p", "Hi", "--device", "cpu", "--json", "--cache"];
    let answer = packlight!(
        "run",
        url,
        args[0],
        args[1],
        args[2],
        args[3],
        args[4],
        args[5],
        folder.path().join("cache")
    );
    assert_eq!(answer.json()["text"], "Hello! How can I help you today?");
}
