//! Which scheme each weight is stored under: one for all, and exceptions by name.

use std::collections::{BTreeMap, BTreeSet};

use super::{Scheme, Storage};
use crate::model::Weight;

/// The scheme of every weight of a bundle.
#[derive(Clone, Debug)]
pub struct Assignment {
    usual: &'static Scheme,
    exceptions: BTreeMap<String, &'static Scheme>,
    native: BTreeSet<String>,
}

impl Assignment {
    /// One scheme for all weights.
    pub fn uniform(scheme: &'static Scheme) -> Self {
        Self { usual: scheme, exceptions: BTreeMap::new(), native: BTreeSet::new() }
    }

    /// Stores the weight of that name under another scheme.
    pub fn except(&mut self, weight: impl Into<String>, scheme: &'static Scheme) {
        self.exceptions.insert(weight.into(), scheme);
    }

    /// Says that the elements of the record of that name are stored as they are in memory.
    pub fn keep_native(&mut self, record: impl Into<String>) {
        self.native.insert(record.into());
    }

    /// The scheme of all weights that are no exceptions.
    pub fn usual(&self) -> &'static Scheme {
        self.usual
    }

    /// The scheme of a weight.
    pub fn scheme(&self, weight: &Weight) -> &'static Scheme {
        self.exceptions.get(&weight.name).unwrap_or(&self.usual)
    }

    /// How a weight is stored.
    pub fn storage(&self, weight: &Weight) -> Storage {
        let mut storage = self.scheme(weight).storage(weight);
        for record in storage.records_mut().filter(|record| self.native.contains(&record.name)) {
            record.stored = record.dtype;
        }
        storage
    }
}
