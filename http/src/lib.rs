//! Bundles and checkpoints over HTTP: read, cached, probed and served.
//!
//! Nothing that a host sends is used or kept before its hash is compared.

mod address;
mod cache;
mod checkpoint;
mod client;
mod error;
mod policy;
pub mod probe;
mod read_ahead;
mod remote;
mod serve;
mod stream;
mod uncached;

pub use address::{Address, Hub, Repository};
pub use cache::{Cache, Cached, Kind};
pub use checkpoint::{Progress, download};
pub use client::Client;
pub use error::HttpError;
pub use policy::Policy;
pub use remote::Remote;
pub use serve::{PageFile, ServeError, Server};
pub use uncached::Uncached;
