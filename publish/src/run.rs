//! The plan, carried out: stage after stage, the switch when everything is there, then what is left of old releases.

use std::cell::Cell;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use packlight_formats::digest::sha256;
use packlight_formats::manifest::packlight::PACKLIGHT;
use serde::Serialize;

use crate::error::PublishError;
use crate::naming::cache_control;
use crate::plan::{Action, Plan, Stage, Step};
use crate::store::Headers;
use crate::upload::upload;

/// How publishing is going.
pub trait Progress {
    /// So many more bytes have arrived.
    fn sent(&self, bytes: u64);
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Published {
    /// SHA-256 of packlight.json.
    pub sha256: String,
    /// Files that were sent, in that order of stages.
    pub sent: Vec<String>,
    /// Their bytes.
    pub bytes: u64,
    /// Files that were there.
    pub kept: usize,
    /// Files of earlier releases that were removed.
    pub pruned: Vec<String>,
    /// Files of earlier releases that are still there.
    pub stale: Vec<String>,
}

const STAGES: [Stage; 5] =
    [Stage::Weights, Stage::Sidecars, Stage::Manifests, Stage::Switch, Stage::After];

impl Plan<'_> {
    /// Sends what is to be sent.
    pub fn run(self, progress: &dyn Progress) -> Result<Published, PublishError> {
        self.store.block_on(async {
            for stage in STAGES {
                let steps: Vec<&Step> = self.to_send().filter(|step| step.stage == stage).collect();
                if stage == Stage::Switch && !steps.is_empty() {
                    self.confirm().await?;
                }
                self.send(&steps, progress).await?;
            }
            let mut pruned = Vec::new();
            if self.options.prune {
                pruned = self.stale().to_vec();
                stream::iter(&pruned)
                    .map(|name| self.store.delete(name))
                    .buffer_unordered(self.options.concurrency.max(1))
                    .try_collect::<()>()
                    .await?;
            }
            Ok(Published {
                sha256: self.release.sha256(),
                sent: self.to_send().map(|step| step.path.clone()).collect(),
                bytes: self.bytes(),
                kept: self.steps().iter().filter(|step| step.action == Action::Keep).count(),
                stale: if pruned.is_empty() { self.stale().to_vec() } else { Vec::new() },
                pruned,
            })
        })
    }

    /// Several files at once. Where one fails, the others stop at the next part.
    async fn send(&self, steps: &[&Step], progress: &dyn Progress) -> Result<(), PublishError> {
        let failed = Cell::new(false);
        let results: Vec<Result<(), PublishError>> = stream::iter(steps)
            .map(|step| async {
                if failed.get() {
                    return Ok(());
                }
                let result = self.send_one(step, &failed, progress).await;
                failed.set(failed.get() || result.is_err());
                result
            })
            .buffer_unordered(self.options.concurrency.max(1))
            .collect()
            .await;
        results.into_iter().collect()
    }

    async fn send_one(
        &self,
        step: &Step,
        failed: &Cell<bool>,
        progress: &dyn Progress,
    ) -> Result<(), PublishError> {
        let sent = |bytes| progress.sent(bytes);
        if let Some(file) = self.release.manifest.file(&step.path) {
            return upload(self.store, self.release, file, failed, sent).await;
        }
        let json = &self.release.json;
        let headers = Headers {
            media_type: "application/json".into(),
            cache_control: cache_control(false),
            identity: sha256(json),
        };
        self.store.put(PACKLIGHT, json.clone(), &headers).await?;
        sent(json.len() as u64);
        Ok(())
    }

    /// Right before the switch: everything is there in its size, and nobody else has switched.
    async fn confirm(&self) -> Result<(), PublishError> {
        let url = || self.store.url().to_owned();
        let objects = self.store.list().await?;
        let early = self.steps().iter().filter(|step| step.stage < Stage::Switch);
        for Step { path, bytes, .. } in early {
            if objects.get(path) != Some(bytes) {
                return Err(PublishError::Incomplete { url: url(), file: path.clone() });
            }
        }
        if self.store.get(PACKLIGHT).await? != self.holdings.json {
            return Err(PublishError::Overtaken { url: url() });
        }
        Ok(())
    }
}
