//! An S3 server on loopback (s3s, over a folder), with faults in front of it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s_fs::FileSystem;
use tempfile::TempDir;
use tokio::runtime::Runtime;

pub(super) const KEY: &str = "AKIDEXAMPLEOFATEST";
pub(super) const SECRET: &str = "wJalrXUtnFEMIsecretEXAMPLEKEY";

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) method: String,
    /// Without the bucket.
    pub(super) key: String,
    pub(super) query: String,
    /// How many of the same came before.
    pub(super) nth: usize,
}

impl Asked {
    /// Whether it would change something.
    pub(super) fn writes(&self) -> bool {
        !matches!(self.method.as_str(), "GET" | "HEAD")
    }

    pub(super) fn is_shard(&self) -> bool {
        self.key.contains("params_shard")
    }

    /// The last piece of the key.
    pub(super) fn name(&self) -> &str {
        self.key.rsplit('/').next().unwrap()
    }
}

/// What to answer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// As S3 does.
    Honest,
    /// As S3 does, later.
    Late(Duration),
    /// An error of that status and code.
    Status(u16, &'static str),
    /// As S3 does, and the answer never arrives.
    Lost,
}

type Script = Box<dyn Fn(&Asked) -> Answer + Send + Sync>;

struct Shared {
    /// For whoever signs.
    signed: S3Service,
    /// For readers: they need no key, as of a bucket that is public.
    open: S3Service,
    script: Script,
    log: Mutex<Vec<Asked>>,
}

/// One bucket named `bucket`, until it is dropped.
pub(super) struct S3 {
    address: SocketAddr,
    folder: TempDir,
    shared: Arc<Shared>,
    /// Ends its tasks when it is dropped.
    _runtime: Runtime,
}

impl S3 {
    pub(super) fn new(script: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        let folder = TempDir::new().unwrap();
        fs_err::create_dir(folder.path().join("bucket")).unwrap();
        let service = || S3ServiceBuilder::new(FileSystem::new(folder.path()).unwrap());
        let mut signed = service();
        signed.set_auth(SimpleAuth::from_single(KEY, SECRET));
        let shared = Arc::new(Shared {
            signed: signed.build(),
            open: service().build(),
            script: Box::new(script),
            log: Mutex::default(),
        });
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let served = Arc::clone(&shared);
        runtime.spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let served = Arc::clone(&served);
                let answer = service_fn(move |request| respond(Arc::clone(&served), request));
                let http = hyper::server::conn::http1::Builder::new();
                // A client that goes away is no fault of the server.
                tokio::spawn(http.serve_connection(TokioIo::new(socket), answer));
            }
        });
        Self { address, folder, shared, _runtime: runtime }
    }

    pub(super) fn honest() -> Self {
        Self::new(|_| Answer::Honest)
    }

    /// For AWS_ENDPOINT_URL.
    pub(super) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where a page would read what was published to `s3://bucket/<prefix>`.
    pub(super) fn url(&self, prefix: &str) -> String {
        format!("{}/bucket/{prefix}/", self.endpoint())
    }

    /// Where the objects of a prefix are kept.
    pub(super) fn objects(&self, prefix: &str) -> PathBuf {
        self.folder.path().join("bucket").join(prefix)
    }

    pub(super) fn log(&self) -> Vec<Asked> {
        self.shared.log.lock().unwrap().clone()
    }

    pub(super) fn forget(&self) {
        self.shared.log.lock().unwrap().clear();
    }

    /// Names of the objects that were written, in that order; one that comes in parts once for each.
    pub(super) fn written(&self) -> Vec<String> {
        let puts = self.log().into_iter().filter(|asked| asked.method == "PUT");
        puts.map(|asked| asked.name().to_owned()).collect()
    }
}

async fn respond(
    shared: Arc<Shared>,
    request: Request<Incoming>,
) -> Result<Response<s3s::Body>, Box<dyn std::error::Error + Send + Sync>> {
    let path = request.uri().path().trim_start_matches('/');
    let key = path.split_once('/').map_or("", |(_, key)| key).to_owned();
    let query = request.uri().query().unwrap_or_default().to_owned();
    let method = request.method().to_string();
    let asked = {
        let mut log = shared.log.lock().unwrap();
        let same = |a: &&Asked| a.method == method && a.key == key && a.query == query;
        let nth = log.iter().filter(same).count();
        let asked = Asked { method, key, query, nth };
        log.push(asked.clone());
        asked
    };
    let signed = request.headers().contains_key("authorization");
    if asked.method == "OPTIONS" {
        let leave = Response::builder().status(204).header("access-control-allow-headers", "range");
        return Ok(allowed(leave.body(s3s::Body::empty()).unwrap()));
    }
    if !signed && asked.writes() {
        return Ok(error(403, "AccessDenied"));
    }
    let answer = (shared.script)(&asked);
    if let Answer::Status(status, code) = answer {
        return Ok(error(status, code));
    }
    if let Answer::Late(pause) = answer {
        tokio::time::sleep(pause).await;
    }
    let service = if signed { &shared.signed } else { &shared.open };
    let response =
        service.call(request.map(s3s::Body::from)).await.map_err(|error| format!("{error:?}"))?;
    if matches!(answer, Answer::Lost) {
        return Err("the connection is closed".into());
    }
    Ok(allowed(response))
}

/// With the CORS settings that a public bucket is given.
fn allowed(mut response: Response<s3s::Body>) -> Response<s3s::Body> {
    for (name, value) in [
        ("access-control-allow-origin", "*"),
        ("access-control-expose-headers", "Content-Range, Content-Length, Accept-Ranges, ETag"),
    ] {
        response.headers_mut().insert(name, value.parse().unwrap());
    }
    response
}

fn error(status: u16, code: &str) -> Response<s3s::Body> {
    let body = format!(
        "<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>as the test says</Message>\
         <AWSAccessKeyId>{KEY}</AWSAccessKeyId></Error>"
    );
    Response::builder().status(status).body(s3s::Body::from(body)).unwrap()
}
