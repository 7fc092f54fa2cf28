//! What is at the prefix already, and what of it can be relied on.

use std::collections::BTreeMap;

use bytes::Bytes;
use packlight_formats::manifest::packlight::PACKLIGHT;
use packlight_formats::manifest::{File, Packlight};

use crate::error::PublishError;
use crate::naming::{ENTRANCES, is_hashed};
use crate::release::{Release, identity};
use crate::store::Store;

/// The objects at a prefix.
#[derive(Debug)]
pub(crate) struct Holdings {
    /// Sizes by name.
    pub(crate) objects: BTreeMap<String, u64>,
    /// packlight.json, byte for byte.
    pub(crate) json: Option<Bytes>,
    /// The same, where it can be understood.
    pub(crate) manifest: Option<Packlight>,
}

impl Holdings {
    pub(crate) async fn of(store: &Store) -> Result<Self, PublishError> {
        let objects = store.list().await?;
        let json = if objects.contains_key(PACKLIGHT) { store.get(PACKLIGHT).await? } else { None };
        let manifest = json.as_deref().and_then(|json| Packlight::parse(json).ok());
        Ok(Self { objects, json, manifest })
    }

    /// Whether a file is there as the release has it.
    ///
    /// A name that carries its content is believed, since objects appear whole and only under their own name. Any other
    /// object must say itself what is in it; its size says nothing.
    pub(crate) async fn has(
        &self,
        store: &Store,
        release: &Release,
        file: &File,
    ) -> Result<bool, PublishError> {
        if self.objects.get(&file.path) != Some(&file.bytes) {
            return Ok(false);
        }
        if is_hashed(&release.manifest, file) {
            return Ok(true);
        }
        let found = store.identity(&file.path, file.bytes, release.manifest.chunk_bytes).await?;
        Ok(found.is_some_and(|found| found == identity(file)))
    }

    /// The first file by which clients would find another release here. These are small: they are read.
    pub(crate) async fn differing(
        &self,
        store: &Store,
        release: &Release,
    ) -> Result<Option<String>, PublishError> {
        if self.json.as_ref().is_some_and(|json| *json != release.json) {
            return Ok(Some(PACKLIGHT.into()));
        }
        for name in ENTRANCES {
            let Some(&bytes) = self.objects.get(name) else { continue };
            let same = match release.manifest.file(name) {
                Some(file) if file.bytes == bytes => {
                    let chunk_bytes = release.manifest.chunk_bytes;
                    store.read_identity(name, bytes, chunk_bytes).await? == identity(file)
                }
                _ => false,
            };
            if !same {
                return Ok(Some(name.into()));
            }
        }
        Ok(None)
    }

    /// Whether a reader of the release that is there now reads this very file.
    pub(crate) fn reads(&self, path: &str) -> bool {
        let listed = self.manifest.as_ref().and_then(|manifest| manifest.file(path));
        listed.is_some_and(|file| file.alias_of.is_none())
    }
}
