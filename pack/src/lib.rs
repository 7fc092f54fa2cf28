//! A stream of records becomes a bundle: shards and manifests in a folder. And the other way: is a bundle what its
//! manifests say?
//!
//! Every file appears under its name only when it is whole, and `packlight.json` comes last.

mod budget;
mod claim;
mod compact;
mod contents;
mod draft;
mod error;
mod files;
mod folder;
mod hash;
mod headers;
mod host;
mod journal;
mod layout;
mod records;
mod shards;
mod sidecar;
mod source;
#[cfg(test)]
mod tests;
mod verify;
mod writer;

pub use claim::{Claim, ClaimOptions};
pub use contents::Contents;
pub use draft::{Cut, Draft};
pub use error::{Misfit, PackError};
pub use files::Files;
pub use folder::Occupied;
pub use host::{HOSTS, Host};
pub use layout::{DEFAULT_SHARD_BYTES, ShardPlan, plan_shards};
pub use sidecar::{Sidecar, media_type};
pub use source::Source;
pub use verify::{Problem, Verification, VerifyOptions, verify};
pub use writer::Written;
