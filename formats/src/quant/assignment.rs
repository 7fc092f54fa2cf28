//! Which scheme each weight is stored under: one for all, and exceptions by name.

use std::collections::BTreeMap;

use super::{Scheme, Storage};
use crate::model::Weight;

/// The scheme of every weight of a bundle.
#[derive(Clone, Debug)]
pub struct Assignment {
    usual: &'static Scheme,
    exceptions: BTreeMap<String, &'static Scheme>,
}

impl Assignment {
    /// One scheme for all weights.
    pub fn uniform(scheme: &'static Scheme) -> Self {
        Self { usual: scheme, exceptions: BTreeMap::new() }
    }

    /// Stores the weight of that name under another scheme.
    pub fn except(&mut self, weight: impl Into<String>, scheme: &'static Scheme) {
        self.exceptions.insert(weight.into(), scheme);
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
        self.scheme(weight).storage(weight)
    }
}
