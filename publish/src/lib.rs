//! A bundle goes to where it is read from: S3 and what speaks its protocol, Google Cloud Storage, Azure, or a folder.
//!
//! Readers see the old release or the new one, never some of each. What makes a release is one file, `packlight.json`,
//! which such stores replace in one step; everything it names is there, whole, before it is.
//!
//! `docs/publishing.md` has the rules.

mod connector;
mod error;
mod holdings;
mod naming;
mod plan;
mod release;
mod run;
mod store;
mod upload;

pub use error::PublishError;
pub use plan::{Action, Options, Plan, Stage, Step};
pub use release::Release;
pub use run::{Progress, Published};
pub use store::Store;
