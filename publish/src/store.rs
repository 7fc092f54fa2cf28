//! A prefix of an object store, from its URL and the environment.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::TryFutureExt as _;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, BackoffConfig, GetOptions, GetResult, MultipartUpload, ObjectStore,
    ObjectStoreExt as _, ObjectStoreScheme, PutPayload, RetryConfig,
};
use packlight_formats::digest::sha256;
use tokio::runtime::Runtime;
use url::Url;

use crate::connector::Connector;
use crate::error::{PublishError, said};

/// Where an object keeps what [`crate::release::identity`] says of it: written with its bytes, in one step.
const IDENTITY: &str = "packlightsha256";

/// What an object is sent with.
#[derive(Clone, Debug)]
pub(crate) struct Headers {
    pub(crate) media_type: String,
    pub(crate) cache_control: &'static str,
    pub(crate) identity: String,
}

/// A place that bundles can be published to.
pub struct Store {
    objects: Arc<dyn ObjectStore>,
    prefix: Path,
    /// As it was given.
    url: String,
    /// Whether objects can carry more than bytes. Files in a folder cannot.
    attributes: bool,
    runtime: Runtime,
}

impl fmt::Debug for Store {
    /// The store itself might tell how it is opened.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("url", &self.url).finish_non_exhaustive()
    }
}

/// An address that was refused, as it may be repeated: people paste passwords and signatures along with it.
fn shown(given: &str) -> String {
    let public = given.split(['?', '#']).next().unwrap_or_default();
    let (scheme, rest) = public.split_at(public.find("://").map_or(0, |at| at + 3));
    let authority = rest.split('/').next().unwrap_or_default();
    // `abfss://container@account` has no secret in it.
    let user = authority.contains('@') && !scheme.starts_with("abfs");
    // What follows a colon and is no port may be half a password.
    let odd = |(_, port): (&str, &str)| !port.bytes().all(|b| b.is_ascii_digit());
    if !user && (scheme.is_empty() || !authority.split_once(':').is_some_and(odd)) {
        return public.into();
    }
    let place = rest.rsplit_once('@').map_or("", |(_, place)| place);
    format!("{scheme}***@{place}")
}

const HOW: &str = "give s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, abfss://container@account.dfs.core.windows.net/prefix or file:///folder";

impl Store {
    /// `s3://`, `gs://`, `az://`, `abfs[s]://` or `file:///`. Credentials and endpoints are those of the environment, as
    /// the tools of these stores read them: `AWS_*`, `GOOGLE_*`, `AZURE_*`.
    pub fn open(given: &str) -> Result<Self, PublishError> {
        let fault = |reason: &str, hint| PublishError::Url {
            url: shown(given),
            reason: reason.into(),
            hint,
        };
        let url = Url::parse(given).map_err(|_| fault("it is not a URL", HOW))?;
        match url.scheme() {
            "s3" | "gs" | "az" | "abfs" | "abfss" | "file" => {}
            "http" | "https" => {
                return Err(fault(
                    "that is where it is read, and web servers take no files",
                    "give the bucket, as in s3://bucket/prefix; AWS_ENDPOINT_URL names the server of an S3-compatible store",
                ));
            }
            _ => return Err(fault("its scheme is not known", HOW)),
        }
        let azure = url.scheme().starts_with("abfs");
        if url.password().is_some() || (!azure && !url.username().is_empty()) {
            return Err(fault(
                "it has a user or a password in it",
                "credentials are read from the environment",
            ));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(fault("it has a query or a fragment", HOW));
        }
        let (scheme, prefix) =
            ObjectStoreScheme::parse(&url).map_err(|_| fault("it is not understood", HOW))?;
        let attributes = scheme != ObjectStoreScheme::Local;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let objects = objects(&scheme, given).map_err(|error| match error {
            Some(error) => fault(
                &said(&error),
                "the store's settings come from the environment: AWS_*, GOOGLE_*, AZURE_*",
            ),
            None => fault("this packlight was built without that kind of store", HOW),
        })?;
        let url = given.trim_end_matches('/').to_owned();
        Ok(Self { objects, prefix, url, attributes, runtime })
    }

    /// As it was given.
    pub fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    fn path(&self, name: &str) -> Result<Path, PublishError> {
        // Names go into the store as they are: `Path::join` would spell some characters otherwise.
        Path::parse(format!("{}/{name}", self.prefix)).map_err(|error| PublishError::Url {
            url: self.url.clone(),
            reason: format!("it cannot hold `{name}`: {error}"),
            hint: HOW,
        })
    }

    fn failed(&self, doing: String) -> impl Fn(object_store::Error) -> PublishError + '_ {
        move |error| PublishError::store(&self.url, &doing, &error)
    }

    /// Names and sizes of the objects right below the prefix.
    pub(crate) async fn list(&self) -> Result<BTreeMap<String, u64>, PublishError> {
        let listed = match self.objects.list_with_delimiter(Some(&self.prefix)).await {
            Ok(listed) => listed,
            Err(object_store::Error::NotFound { .. }) if !self.attributes => {
                return Ok(BTreeMap::new());
            }
            Err(error) => return Err(self.failed("listing it".into())(error)),
        };
        let entry = |object: &object_store::ObjectMeta| {
            Some((object.location.filename()?.to_owned(), object.size))
        };
        Ok(listed.objects.iter().filter_map(entry).collect())
    }

    /// A small object, whole.
    pub(crate) async fn get(&self, name: &str) -> Result<Option<Bytes>, PublishError> {
        let got = self.objects.get(&self.path(name)?).and_then(GetResult::bytes).await;
        match got {
            Ok(bytes) => Ok(Some(bytes)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed(format!("reading `{name}`"))(error)),
        }
    }

    /// What is in an object of that size: as it was noted when it was sent, or by reading it, in a folder. `None` where
    /// nobody noted it.
    pub(crate) async fn identity(
        &self,
        name: &str,
        bytes: u64,
        chunk_bytes: u64,
    ) -> Result<Option<String>, PublishError> {
        if !self.attributes {
            return self.read_identity(name, bytes, chunk_bytes).await.map(Some);
        }
        let head = GetOptions { head: true, ..GetOptions::default() };
        match self.objects.get_opts(&self.path(name)?, head).await {
            Ok(found) => {
                let noted = found.attributes.get(&Attribute::Metadata(IDENTITY.into()));
                Ok(noted.map(|value| value.as_ref().to_owned()))
            }
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed(format!("looking at `{name}`"))(error)),
        }
    }

    /// Whether a small object has these bytes: as it was noted when it was sent, or by reading it, in a folder.
    pub(crate) async fn holds(&self, name: &str, bytes: &Bytes) -> Result<bool, PublishError> {
        if self.attributes {
            let noted = self.identity(name, bytes.len() as u64, u64::MAX).await?;
            return Ok(noted.is_some_and(|noted| noted == sha256(bytes)));
        }
        Ok(self.get(name).await?.is_some_and(|found| found == *bytes))
    }

    /// The same by reading it, a chunk at a time.
    pub(crate) async fn read_identity(
        &self,
        name: &str,
        bytes: u64,
        chunk_bytes: u64,
    ) -> Result<String, PublishError> {
        let path = self.path(name)?;
        let mut hashes = Vec::new();
        for i in 0..bytes.div_ceil(chunk_bytes) {
            let range = i * chunk_bytes..((i + 1) * chunk_bytes).min(bytes);
            let chunk = self.objects.get_range(&path, range).await;
            hashes.push(sha256(&chunk.map_err(self.failed(format!("reading `{name}`")))?));
        }
        Ok(match &hashes[..] {
            [] => sha256(b""),
            [only] => only.clone(),
            chunks => sha256(chunks.concat().as_bytes()),
        })
    }

    pub(crate) async fn put(
        &self,
        name: &str,
        bytes: Bytes,
        headers: &Headers,
    ) -> Result<(), PublishError> {
        let attributes = self.attributes(headers);
        let sent = self
            .objects
            .put_opts(&self.path(name)?, PutPayload::from_bytes(bytes), attributes.into())
            .await;
        sent.map(|_| ()).map_err(self.failed(format!("writing `{name}`")))
    }

    /// An object that comes in parts and appears when it is complete.
    pub(crate) async fn begin(
        &self,
        name: &str,
        headers: &Headers,
    ) -> Result<Parts<'_>, PublishError> {
        let attributes = self.attributes(headers);
        let begun = self.objects.put_multipart_opts(&self.path(name)?, attributes.into()).await;
        let upload = begun.map_err(self.failed(format!("writing `{name}`")))?;
        Ok(Parts { store: self, name: name.into(), upload })
    }

    pub(crate) async fn delete(&self, name: &str) -> Result<(), PublishError> {
        match self.objects.delete(&self.path(name)?).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed(format!("deleting `{name}`"))(error)),
        }
    }

    fn attributes(&self, headers: &Headers) -> Attributes {
        if !self.attributes {
            return Attributes::new();
        }
        let Headers { media_type, cache_control, identity } = headers.clone();
        Attributes::from_iter([
            (Attribute::ContentType, media_type),
            (Attribute::CacheControl, cache_control.into()),
            (Attribute::Metadata(IDENTITY.into()), identity),
        ])
    }
}

/// An upload in parts.
pub(crate) struct Parts<'a> {
    store: &'a Store,
    name: String,
    upload: Box<dyn MultipartUpload>,
}

impl Parts<'_> {
    pub(crate) async fn put(&mut self, bytes: Bytes) -> Result<(), PublishError> {
        let sent = self.upload.put_part(PutPayload::from_bytes(bytes)).await;
        sent.map_err(self.store.failed(format!("writing `{}`", self.name)))
    }

    pub(crate) async fn complete(&mut self) -> Result<(), PublishError> {
        let completed = self.upload.complete().await;
        completed.map(|_| ()).map_err(self.store.failed(format!("writing `{}`", self.name)))
    }

    /// Parts that nobody will complete would be paid for. Where this fails, the store's own rules clear them away.
    pub(crate) async fn abort(&mut self) {
        self.upload.abort().await.ok();
    }
}

/// As patient as packlight is with web servers.
fn retries() -> RetryConfig {
    let backoff = BackoffConfig {
        init_backoff: Duration::from_millis(500),
        max_backoff: Duration::from_mins(1),
        base: 2.0,
    };
    RetryConfig { backoff, max_retries: 4, retry_timeout: Duration::from_mins(3) }
}

/// The store of a scheme; an error is object_store's own, or none where the kind is not built in.
fn objects(
    scheme: &ObjectStoreScheme,
    url: &str,
) -> Result<Arc<dyn ObjectStore>, Option<object_store::Error>> {
    Ok(match scheme {
        ObjectStoreScheme::Local => Arc::new(LocalFileSystem::new().with_fsync(true)),
        #[cfg(feature = "s3")]
        ObjectStoreScheme::AmazonS3 => {
            let builder = object_store::aws::AmazonS3Builder::from_env().with_url(url);
            Arc::new(builder.with_retry(retries()).with_http_connector(Connector).build()?)
        }
        #[cfg(feature = "gcs")]
        ObjectStoreScheme::GoogleCloudStorage => {
            let builder = object_store::gcp::GoogleCloudStorageBuilder::from_env().with_url(url);
            Arc::new(builder.with_retry(retries()).with_http_connector(Connector).build()?)
        }
        #[cfg(feature = "azure")]
        ObjectStoreScheme::MicrosoftAzure => {
            let builder = object_store::azure::MicrosoftAzureBuilder::from_env().with_url(url);
            Arc::new(builder.with_retry(retries()).with_http_connector(Connector).build()?)
        }
        _ => return Err(None),
    })
}
