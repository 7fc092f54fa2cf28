//! `packlight probe`: what a page on another origin would meet.

use std::collections::BTreeMap;

use insta::assert_snapshot;
use serde_json::Value;

use super::host::{Answer, Asked, Host};
use super::serve::Serving;
use super::{bundle, files};
use crate::packlight;

/// A host whose every answer has these headers.
fn host(headers: &[(&'static str, &str)]) -> Host {
    let headers: Vec<_> = headers.iter().map(|&(name, value)| (name, value.to_owned())).collect();
    Host::new(files(bundle()), move |_| Answer::With(headers.clone()))
}

/// The state of each check.
fn states(report: &Value) -> BTreeMap<String, String> {
    let checks = report["checks"].as_array().unwrap().iter();
    checks
        .map(|check| {
            let text = |key: &str| check[key].as_str().unwrap().to_owned();
            if text("status") != "pass" {
                assert!(check["fix"].is_string(), "{check}");
            }
            (text("name"), text("status"))
        })
        .collect()
}

/// What `probe` says of a host, and its exit status.
fn probed(url: &str) -> (BTreeMap<String, String>, i32) {
    let ran = packlight!("probe", url, "--json");
    let report: Value =
        serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}", ran.stderr));
    assert_eq!(report["ok"], ran.code == 0);
    (states(&report), ran.code)
}

#[track_caller]
fn assert_states(found: &BTreeMap<String, String>, expected: &[(&str, &str)]) {
    for (name, state) in expected {
        assert_eq!(found[*name], *state, "{name} in {found:?}");
    }
}

#[test]
fn our_own_server_passes() {
    let server = Serving::start(bundle());
    let text = packlight!("probe", server.url).ok();
    assert_snapshot!("probe", text.replace(&server.url, "URL"));
    let (states, _) = probed(&server.url);
    assert!(states.values().all(|state| state == "pass"), "{states:?}");
}

#[test]
fn a_host_that_sends_no_headers_fails() {
    let host = host(&[]);
    let (states, code) = probed(&host.url());
    assert_eq!(code, 1);
    assert_states(
        &states,
        &[
            ("CORS", "fail"),
            ("CORS preflight", "warn"),
            ("exposed headers", "warn"),
            ("ranges", "pass"),
            ("content types", "warn"),
            ("files", "pass"),
            ("manifest", "pass"),
        ],
    );
}

#[test]
fn each_fault_is_found() {
    let cors = ("Access-Control-Allow-Origin", "*");
    let (states, _) =
        probed(&host(&[("Access-Control-Allow-Origin", "https://other.example")]).url());
    assert_states(&states, &[("CORS", "fail")]);
    // A manifest that our own client could not read either.
    let encoded = packlight!("probe", host(&[cors, ("Content-Encoding", "br")]).url()).fails(2);
    assert!(encoded.contains("Content-Encoding br"), "{encoded}");
    let (states, _) =
        probed(&host(&[cors, ("Cache-Control", "public, max-age=31536000, immutable")]).url());
    assert_states(&states, &[("caching of manifest", "fail"), ("caching of weights", "warn")]);
    let (states, _) = probed(&host(&[cors, ("Cache-Control", "no-store")]).url());
    assert_states(&states, &[("caching of manifest", "pass"), ("caching of weights", "warn")]);
    let (states, _) = probed(&host(&[cors, ("Content-Range", "bytes 5-5/10")]).url());
    assert_states(&states, &[("ranges", "fail")]);
}

/// Faults of the weights alone.
#[test]
fn weights_are_looked_at_too() {
    let cors = || vec![("Access-Control-Allow-Origin", "*".to_owned())];
    let probe = |answer: Answer| {
        let host = Host::new(files(bundle()), move |asked: &Asked| {
            if asked.is_shard() { answer.clone() } else { Answer::With(cors()) }
        });
        probed(&host.url()).0
    };
    let mut gzip = cors();
    gzip.push(("Content-Encoding", "gzip".into()));
    assert_states(&probe(Answer::With(gzip)), &[("encoding of weights", "fail"), ("CORS", "pass")]);
    assert_states(&probe(Answer::Html), &[("content types", "fail")]);
    assert_states(&probe(Answer::Whole), &[("ranges", "warn")]);
    assert_states(&probe(Answer::Shorter(1)), &[("files", "fail")]);
    assert_states(&probe(Answer::Status(404, vec![])), &[("files", "fail")]);
    assert_states(
        &probe(Answer::Status(429, vec![])),
        &[("files", "fail"), ("rate limit", "fail")],
    );
    // From another origin, which allows every page or does not.
    for (headers, state) in [(cors(), "pass"), (vec![], "fail")] {
        let elsewhere = Host::new(files(bundle()), move |_| Answer::With(headers.clone()));
        let url = elsewhere.url();
        let host = Host::new(files(bundle()), move |asked: &Asked| {
            if asked.is_shard() {
                Answer::Status(302, vec![("Location", format!("{url}{}", &asked.path[1..]))])
            } else {
                Answer::With(cors())
            }
        });
        assert_states(&probed(&host.url()).0, &[("redirects", state)]);
    }
}

#[test]
fn what_cannot_be_probed_is_an_error() {
    let folder = packlight!("probe", bundle()).fails(2);
    assert!(folder.contains("is not a URL") && folder.contains("packlight serve"), "{folder}");
    let host = Host::new(BTreeMap::new(), |_| Answer::Honest);
    let missing = packlight!("probe", host.url()).fails(2);
    assert!(missing.contains("packlight.json") && missing.contains("is not there"), "{missing}");
}
