//! The HTTP client under object_store is the one that packlight has for everything else: one TLS, one way to set a proxy.

use std::io::ErrorKind;
use std::time::Duration;

use async_trait::async_trait;
use http_body_util::BodyExt as _;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use ureq::http::{Method, Request, Response};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};

/// Names, TCP and TLS.
const CONNECT: Duration = Duration::from_secs(15);
/// A machine that hands out credentials is next door, or is not there.
const CONNECT_TO_METADATA: Duration = Duration::from_secs(1);
/// For the next bytes; a store may think for a while before it answers that an object is complete.
const SILENCE: Duration = Duration::from_mins(1);
/// Listings come a thousand objects at a time, and of files only manifests are read over HTTP.
const MAX_ANSWER: u64 = 256 << 20;

/// Where clouds hand credentials to their own machines. object_store asks there when it finds none.
pub(crate) const METADATA: [&str; 3] =
    ["169.254.169.254", "169.254.170.2", "metadata.google.internal"];

/// Makes clients.
#[derive(Debug)]
pub(crate) struct Connector;

#[derive(Debug)]
struct Client(Agent);

impl HttpConnector for Connector {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
        let config = Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            // A signature is for one address.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("packlight/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(Some(CONNECT))
            .timeout_connect(Some(CONNECT))
            .timeout_per_read(Some(SILENCE))
            .timeout_per_write(Some(SILENCE))
            .build();
        Ok(HttpClient::new(Client(config.into())))
    }
}

#[async_trait]
impl HttpService for Client {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let agent = self.0.clone();
        let answer = tokio::task::spawn_blocking(move || -> Result<_, ureq::Error> {
            let metadata = head.uri.host().is_some_and(|host| METADATA.contains(&host));
            let bare = [Method::GET, Method::HEAD, Method::DELETE].contains(&head.method);
            let answer = if bare && body.is_empty() {
                send(&agent, Request::from_parts(head, ()), metadata)
            } else {
                send(&agent, Request::from_parts(head, &body[..]), metadata)
            };
            let (head, mut body) = answer?.into_parts();
            let body = body.with_config().limit(MAX_ANSWER).read_to_vec()?;
            Ok((head, body))
        });
        let answer = answer.await.map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))?;
        let (head, body) = answer.map_err(|error| HttpError::new(kind(&error), error))?;
        Ok(HttpResponse::from_parts(head, body.into()))
    }
}

fn send<B: ureq::AsSendBody>(
    agent: &Agent,
    request: Request<B>,
    metadata: bool,
) -> Result<Response<Body>, ureq::Error> {
    let timeout = if metadata { CONNECT_TO_METADATA } else { CONNECT };
    let request = agent.configure_request(request).timeout_connect(Some(timeout)).build();
    agent.run(request)
}

/// Whether a request may have been acted upon, which decides whether it is made again.
fn kind(error: &ureq::Error) -> HttpErrorKind {
    match error {
        ureq::Error::HostNotFound
        | ureq::Error::ConnectionFailed
        | ureq::Error::Timeout(
            ureq::Timeout::Resolve | ureq::Timeout::Connect | ureq::Timeout::SendRequest,
        ) => HttpErrorKind::Connect,
        ureq::Error::Timeout(_) => HttpErrorKind::Timeout,
        ureq::Error::Io(error) if error.kind() == ErrorKind::ConnectionRefused => {
            HttpErrorKind::Connect
        }
        // How rustls reports through a stream.
        ureq::Error::Io(error) if error.kind() == ErrorKind::InvalidData => HttpErrorKind::Unknown,
        ureq::Error::Io(_) | ureq::Error::Protocol(_) => HttpErrorKind::Interrupted,
        _ => HttpErrorKind::Unknown,
    }
}
