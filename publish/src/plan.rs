//! What will be done: every file, in order, before anything is.

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use packlight_formats::manifest::packlight::PACKLIGHT;
use packlight_formats::manifest::{File, Names};
use serde::Serialize;

use crate::error::PublishError;
use crate::holdings::Holdings;
use crate::naming::{is_manifest, is_weights, stale};
use crate::release::Release;
use crate::store::Store;

/// How to publish.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Files that are on their way at once.
    pub concurrency: usize,
    /// Whether files of earlier releases go in the end.
    pub prune: bool,
}

/// What is done about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// It is not there.
    Send,
    /// Something else is there under its name.
    Replace,
    /// It is there.
    Keep,
}

/// When a file is sent: all of one stage are there before the next begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    Weights,
    /// Tokenizers and settings.
    Sidecars,
    /// What clients begin with, and the plain names in a bundle with hashed ones.
    Manifests,
    /// packlight.json.
    Switch,
    /// What readers of the release before need under this name until the switch.
    After,
}

/// A file and what is done about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    pub path: String,
    pub bytes: u64,
    pub stage: Stage,
    pub action: Action,
}

/// Everything that publishing will do.
#[derive(Debug)]
pub struct Plan<'a> {
    pub(crate) release: &'a Release,
    pub(crate) store: &'a Store,
    pub(crate) options: Options,
    pub(crate) holdings: Holdings,
    steps: Vec<Step>,
    stale: Vec<String>,
}

impl<'a> Plan<'a> {
    /// Looks at what is there; changes nothing. Refused where files that keep their names would mix two releases.
    pub fn make(
        release: &'a Release,
        store: &'a Store,
        options: Options,
    ) -> Result<Self, PublishError> {
        store.block_on(async {
            let holdings = Holdings::of(store).await?;
            if release.manifest.names == Names::Plain
                && let Some(file) = holdings.differing(store, release).await?
            {
                return Err(PublishError::Differs { url: store.url().into(), file });
            }
            let files = stream::iter(&release.manifest.files)
                .map(|file| step(release, store, &holdings, file))
                .buffered(options.concurrency.max(1));
            let mut steps: Vec<Step> = files.try_collect().await?;
            let action = match &holdings.json {
                None => Action::Send,
                Some(json) if *json == release.json => Action::Keep,
                Some(_) => Action::Replace,
            };
            let (path, bytes) = (PACKLIGHT.to_owned(), release.json.len() as u64);
            steps.push(Step { path, bytes, stage: Stage::Switch, action });
            steps.sort_by_key(|step| step.stage);
            let names = holdings.objects.keys();
            let stale = stale(names, &release.manifest, holdings.manifest.as_ref());
            Ok(Self { release, store, options, holdings, steps, stale })
        })
    }

    /// Every file of the release, in the order in which they are sent.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Files at the prefix that earlier releases have left.
    pub fn stale(&self) -> &[String] {
        &self.stale
    }

    /// Bytes that are to be sent.
    pub fn bytes(&self) -> u64 {
        self.to_send().map(|step| step.bytes).sum()
    }

    pub(crate) fn to_send(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter().filter(|step| step.action != Action::Keep)
    }
}

async fn step(
    release: &Release,
    store: &Store,
    holdings: &Holdings,
    file: &File,
) -> Result<Step, PublishError> {
    let action = if holdings.has(store, release, file).await? {
        Action::Keep
    } else if holdings.objects.contains_key(&file.path) {
        Action::Replace
    } else {
        Action::Send
    };
    let stage = if action == Action::Replace && holdings.reads(&file.path) {
        // Where it is damaged there is nothing to protect.
        if holdings.json.as_ref() == Some(&release.json) { ordinary(file) } else { Stage::After }
    } else {
        ordinary(file)
    };
    Ok(Step { path: file.path.clone(), bytes: file.bytes, stage, action })
}

fn ordinary(file: &File) -> Stage {
    if is_weights(file) {
        Stage::Weights
    } else if is_manifest(file) {
        Stage::Manifests
    } else {
        Stage::Sidecars
    }
}
