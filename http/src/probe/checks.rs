//! What is right and wrong about a host's answers.

use packlight_formats::manifest::packlight::PACKLIGHT;
use ureq::http::{HeaderMap, HeaderName, header};

use super::{Answer, Check, Findings, PAGE, Status};
use crate::address::{is_loopback, origin};
use crate::client::text;

/// `response.arrayBuffer()` of Chromium 156 worked at this size and failed at 2^31 - 2^12 and above.
const LARGEST_READ: u64 = 2_000_000_000;
/// Weights that a browser may forget sooner are downloaded again and again.
const SHORT: u64 = 3600;
/// An updated packlight.json should be seen within this.
const LONG: u64 = 24 * 3600;

pub(super) fn all(found: &Findings) -> Vec<Check> {
    let checks = [
        manifest,
        mixed_content,
        redirects,
        cors,
        preflight,
        exposed,
        range,
        length,
        types,
        encoding,
        caching_of_weights,
        caching_of_manifest,
        files,
        sizes,
        requests,
    ];
    checks.iter().map(|check| check(found)).collect()
}

fn pass(name: &'static str, found: impl Into<String>) -> Check {
    Check { name, status: Status::Pass, found: found.into(), fix: None }
}

fn warn(name: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Check {
    Check { name, status: Status::Warn, found: found.into(), fix: Some(fix.into()) }
}

fn fail(name: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Check {
    Check { name, status: Status::Fail, found: found.into(), fix: Some(fix.into()) }
}

fn manifest(found: &Findings) -> Check {
    let name = "manifest";
    if found.ours {
        pass(name, format!("packlight.json, {} files", found.files.len()))
    } else {
        let fix = "`packlight pack` writes one";
        warn(name, "tensor-cache.json only: nothing else can be checked by its hash", fix)
    }
}

fn mixed_content(found: &Findings) -> Check {
    let name = "mixed content";
    if found.url.starts_with("https://") {
        pass(name, "https")
    } else if is_loopback(&found.url) {
        pass(name, "http, which browsers allow on this machine")
    } else {
        fail(name, "http: pages on https may not read it", "serve it over https")
    }
}

fn redirects(found: &Findings) -> Check {
    let name = "redirects";
    let Some((_, answer)) = &found.weights else { return pass(name, "no weights") };
    match answer.hops.as_slice() {
        [] => pass(name, "none"),
        hops if hops.iter().all(|hop| origin(hop) == origin(&found.url)) => {
            pass(name, format!("{} on the same origin", hops.len()))
        }
        // A browser then says `Origin: null`, which only `*` allows.
        hops if allowed(&answer.headers) != Some("*") => {
            let last = hops.last().map_or("", |hop| origin(hop));
            fail(name, format!("to {last}, which does not allow every origin"), found.host.cors)
        }
        hops => pass(name, format!("{} to another origin, which allows every page", hops.len())),
    }
}

fn allowed(headers: &HeaderMap) -> Option<&str> {
    text(headers, &header::ACCESS_CONTROL_ALLOW_ORIGIN)
}

fn cors(found: &Findings) -> Check {
    let name = "CORS";
    let fix =
        || format!("send Access-Control-Allow-Origin: * with every file; {}", found.host.cors);
    let weights = found.weights.as_ref().map(|(path, answer)| (path.as_str(), answer));
    let answers = [(PACKLIGHT, &found.manifest)].into_iter().chain(weights);
    for (path, answer) in answers {
        match allowed(&answer.headers) {
            Some("*" | PAGE) => {}
            Some(other) => return fail(name, format!("`{path}` allows only {other}"), fix()),
            None => return fail(name, format!("`{path}` allows no other origin"), fix()),
        }
    }
    pass(name, "every origin may read")
}

/// Browsers since 2023 ask for one range without leave.
fn preflight(found: &Findings) -> Check {
    let name = "CORS preflight";
    let fix = "answer OPTIONS with Access-Control-Allow-Headers: Range, for browsers before 2023";
    let fix = || format!("{fix}; {}", found.host.cors);
    let Some(answer) = &found.preflight else { return warn(name, "no answer", fix()) };
    let list = text(&answer.headers, &header::ACCESS_CONTROL_ALLOW_HEADERS).unwrap_or_default();
    let may = list == "*" || lists(list, "range");
    match answer.status {
        200..=299 if may && allowed(&answer.headers).is_some() => pass(name, "Range is allowed"),
        200..=299 => warn(name, "Range is not allowed", fix()),
        status => warn(name, format!("OPTIONS is answered with {status}"), fix()),
    }
}

fn lists(list: &str, name: &str) -> bool {
    list.split(',').any(|item| item.trim().eq_ignore_ascii_case(name))
}

fn exposed(found: &Findings) -> Check {
    let name = "exposed headers";
    let Some(answer) = &found.first_byte else { return warn(name, "no answer", found.host.cors) };
    let list = text(&answer.headers, &header::ACCESS_CONTROL_EXPOSE_HEADERS).unwrap_or_default();
    if list == "*" || lists(list, "content-range") {
        pass(name, "Content-Range can be read")
    } else {
        let fix = "send Access-Control-Expose-Headers: Content-Range, ETag";
        warn(name, "a page cannot read Content-Range", format!("{fix}; {}", found.host.cors))
    }
}

fn range(found: &Findings) -> Check {
    let name = "ranges";
    let fix = "without ranges a download that breaks off begins anew; another host has them";
    let Some(answer) = &found.first_byte else { return warn(name, "no answer", fix) };
    let value = text(&answer.headers, &header::CONTENT_RANGE).unwrap_or_default();
    match answer.status {
        206 if value.starts_with("bytes 0-0/") => pass(name, "206 Partial Content"),
        206 => fail(name, format!("bytes 0-0 are answered with Content-Range `{value}`"), fix),
        200 => warn(name, "Range is ignored: files are sent whole", fix),
        status => fail(name, format!("a range is answered with {status}"), fix),
    }
}

fn length(found: &Findings) -> Check {
    let name = "content length";
    let Some((_, answer)) = &found.weights else { return pass(name, "no weights") };
    match text(&answer.headers, &header::CONTENT_LENGTH) {
        Some(length) => pass(name, format!("{length} bytes")),
        None => warn(name, "not sent: progress cannot be shown", found.host.headers),
    }
}

fn types(found: &Findings) -> Check {
    let name = "content types";
    let mut odd = Vec::new();
    for (file, head) in found.files.iter().zip(&found.heads) {
        let (path, Ok(answer)) = (&file.path, head) else { continue };
        if answer.status < 300 && answer.html {
            let fix =
                "the host shows a page where a file is missing: upload it, and turn that page off";
            return fail(name, format!("`{path}` is an HTML page"), fix);
        }
        let sent = text(&answer.headers, &header::CONTENT_TYPE).unwrap_or_default();
        let essence = sent.split(';').next().unwrap_or_default().trim();
        // Pages read JSON whatever it is called; `text/plain` is what the hub calls it.
        if file.media_type == "application/json"
            && !matches!(essence, "application/json" | "text/plain")
        {
            odd.push(format!("`{path}` is sent as `{essence}`"));
        }
    }
    match odd.first() {
        None => pass(name, "as they should be"),
        Some(first) => warn(name, first.as_str(), found.host.headers),
    }
}

fn encoding(found: &Findings) -> Check {
    let name = "encoding of weights";
    let Some((path, answer)) = &found.weights else { return pass(name, "no weights") };
    match text(&answer.headers, &header::CONTENT_ENCODING) {
        None | Some("identity") => pass(name, "none"),
        Some(encoding) => {
            let fix = "turn compression off for them: ranges and lengths count compressed bytes";
            let fix = format!("{fix}; {}", found.host.headers);
            fail(name, format!("`{path}` is compressed with {encoding}"), fix)
        }
    }
}

/// `max-age` and whether `immutable` and `no-store` are there.
fn cache_control(headers: &HeaderMap) -> (Option<u64>, bool, bool) {
    let value = text(headers, &header::CACHE_CONTROL).unwrap_or_default();
    let age = value.split(',').find_map(|item| item.trim().strip_prefix("max-age=")?.parse().ok());
    (age, lists(value, "immutable"), lists(value, "no-store"))
}

/// Whether a name changes with what it names.
fn is_hashed(path: &str) -> bool {
    let runs = path.split(|c: char| !c.is_ascii_hexdigit());
    runs.into_iter().any(|run| run.len() >= 12)
}

fn caching_of_weights(found: &Findings) -> Check {
    let name = "caching of weights";
    let Some((path, answer)) = &found.weights else { return pass(name, "no weights") };
    let (age, immutable, no_store) = cache_control(&answer.headers);
    let revalidates =
        has(&answer.headers, &header::ETAG) || has(&answer.headers, &header::LAST_MODIFIED);
    let long = "send Cache-Control: public, max-age=31536000, immutable";
    if no_store {
        warn(name, "no-store: every visit downloads everything", found.host.headers)
    } else if is_hashed(path) {
        match (immutable, age) {
            (true, _) | (_, Some(SHORT..)) => pass(name, "kept"),
            _ => warn(
                name,
                "names are by content, but not kept",
                format!("{long}; {}", found.host.headers),
            ),
        }
    } else if immutable {
        let fix = "with --names hashed an update changes the names; or leave `immutable` out";
        warn(name, "immutable, though an update keeps the name", fix)
    } else if revalidates || age.is_some() {
        pass(name, "kept, and asked about")
    } else {
        warn(name, "neither Cache-Control nor ETag", found.host.headers)
    }
}

fn has(headers: &HeaderMap, name: &HeaderName) -> bool {
    headers.contains_key(name)
}

fn caching_of_manifest(found: &Findings) -> Check {
    let name = "caching of manifest";
    let fix = format!("send Cache-Control: no-cache with it; {}", found.host.headers);
    match cache_control(&found.manifest.headers) {
        (_, true, _) => fail(name, "immutable: an update would not be seen", fix),
        (Some(age @ LONG..), ..) => warn(name, format!("an update is not seen for {age} s"), fix),
        _ => pass(name, "an update is seen"),
    }
}

fn files(found: &Findings) -> Check {
    let name = "files";
    let mut wrong = Vec::new();
    for (file, head) in found.files.iter().zip(&found.heads) {
        let (path, expected) = (&file.path, file.bytes);
        match head {
            Err(error) => wrong.push(error.clone()),
            // Reported with the types.
            Ok(Answer { status: 200..=299, html: true, .. }) => {}
            Ok(Answer { status: 200..=299, headers, .. }) => {
                let plain = !has(headers, &header::CONTENT_ENCODING);
                let length = text(headers, &header::CONTENT_LENGTH).filter(|_| plain);
                match length.and_then(|length| length.parse::<u64>().ok()) {
                    Some(length) if length != expected => {
                        wrong.push(format!("`{path}` has {length} bytes, expected {expected}"));
                    }
                    Some(_) | None => {}
                }
            }
            Ok(Answer { status, .. }) => wrong.push(format!("`{path}` is answered with {status}")),
        }
    }
    match wrong.as_slice() {
        [] => pass(name, format!("all {} are there", found.heads.len())),
        [first, rest @ ..] => {
            let more =
                if rest.is_empty() { String::new() } else { format!(", and {} more", rest.len()) };
            fail(name, format!("{first}{more}"), "upload the bundle again, packlight.json last")
        }
    }
}

fn sizes(found: &Findings) -> Check {
    let name = "file sizes";
    match found.files.iter().max_by_key(|file| file.bytes) {
        Some(file) if file.bytes > LARGEST_READ => {
            let fix = "`packlight pack --max-file-bytes` cuts it";
            let bytes = file.bytes;
            fail(
                name,
                format!(
                    "`{}` has {bytes} bytes: browsers read at most {LARGEST_READ} at once",
                    file.path
                ),
                fix,
            )
        }
        Some(file) => pass(name, format!("at most {} bytes", file.bytes)),
        None => pass(name, "no files"),
    }
}

fn requests(found: &Findings) -> Check {
    let name = "rate limit";
    let count = found.files.len() as u64 + 1;
    let refused = found.heads.iter().any(|head| matches!(head, Ok(Answer { status: 429, .. })));
    if refused {
        let fix = "larger shards make fewer requests (`--shard-bytes`); or another host";
        return fail(name, format!("{count} files are too many requests for this host (429)"), fix);
    }
    match found.host.rate {
        Some((limit, seconds)) if count * 10 > limit => {
            let fix = "larger shards make fewer requests (`--shard-bytes`)";
            let visits = limit / count;
            warn(
                name,
                format!("{limit} requests in {seconds} s are {visits} downloads per address"),
                fix,
            )
        }
        Some((limit, seconds)) => pass(name, format!("{count} of {limit} requests in {seconds} s")),
        None => pass(name, format!("{count} requests, none refused")),
    }
}
