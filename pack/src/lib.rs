//! A stream of records becomes a bundle: shards and manifests in a folder. And the other way: is a bundle what its
//! manifests say?
//!
//! Every file appears under its name only when it is whole, and `packlight.json` comes last.

mod error;
mod files;
mod folder;
mod hash;
mod layout;
mod shards;
mod sidecar;
mod verify;
mod writer;

pub use error::PackError;
pub use files::Files;
pub use folder::{Folder, Occupied};
pub use layout::{DEFAULT_SHARD_BYTES, ShardPlan, plan_shards};
pub use sidecar::{Sidecar, media_type};
pub use verify::{Problem, Verification, VerifyOptions, verify};
pub use writer::{BundleInfo, Written, write_bundle};
