//! Commands about places that bundles are read from over a network.

use std::path::PathBuf;

use super::parse_limit;
use crate::page::Page;

/// Where downloads are kept.
#[derive(Debug, clap::Args)]
pub(crate) struct CacheFolder {
    /// Folder for downloads; default: packlight in the user's cache folder.
    #[arg(long = "cache", value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
}

/// Serve a bundle on this machine, for trying it in a browser.
#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// Bundle folder.
    pub(crate) bundle: PathBuf,
    /// Port to listen on; 0 for any that is free.
    #[arg(long, default_value_t = 8000, value_name = "N")]
    pub(crate) port: u16,
    /// Serve the page that runs the bundle in a browser, too: the one that this binary carries, or that of a folder
    /// which `web/build` has made.
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub(crate) web: Option<Page>,
}

/// Check what a web page on another origin would meet at a bundle's URL.
#[derive(Debug, clap::Args)]
pub(crate) struct ProbeArgs {
    /// https://host/folder/ or hf://owner/name[@revision].
    pub(crate) url: String,
    /// Print the result as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// List what was downloaded, or make it less.
#[derive(Debug, clap::Args)]
pub(crate) struct CacheArgs {
    #[command(flatten)]
    pub(crate) cache: CacheFolder,
    /// Remove what was not used for longest, until this much is left; 0 removes everything.
    #[arg(long, value_name = "SIZE", value_parser = parse_limit)]
    pub(crate) limit: Option<u64>,
    /// Print the result as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Send a bundle to an object store. Readers see the old release or the new one, never some of each.
#[derive(Debug, clap::Args)]
pub(crate) struct PublishArgs {
    /// Bundle folder.
    pub(crate) bundle: PathBuf,
    /// s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///folder. Credentials come from the
    /// environment: AWS_*, GOOGLE_*, AZURE_*; AWS_ENDPOINT_URL names an S3-compatible store.
    pub(crate) url: String,
    /// Files that are on their way at once; each needs 8 MiB of memory.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) concurrency: u16,
    /// In the end remove files of earlier releases from that prefix, and nothing else.
    #[arg(long)]
    pub(crate) prune: bool,
    /// Print what would be sent and removed, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print the result as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}
