//! Naming the weights of a checkpoint, in it and in the bundle.

use crate::model::{Head, Linear, Norm, Recipe, Role, Source, Weight};

/// MLC quantises no matrix called `gate` with at most so many rows: it takes them for the routers of experts.
const MAX_GATE_ROWS: u32 = 256;

/// The bundle's names for the decoder's modules.
pub(super) struct Names {
    /// Stands before all of them.
    pub prefix: &'static str,
    /// Parts of transformers' names and what replaces them.
    pub renamed: &'static [(&'static str, &'static str)],
}

impl Names {
    /// transformers' own.
    pub(super) const USUAL: Self = Self { prefix: "model.", renamed: &[] };

    fn of(&self, path: &str) -> String {
        let renamed = self.renamed.iter();
        self.prefix.to_owned()
            + &renamed.fold(path.to_owned(), |path, (from, to)| path.replace(from, to))
    }
}

/// How the weight of a norm is stored.
#[derive(Clone, Copy)]
pub(super) enum NormWeight {
    /// As it is used.
    Plain,
    /// As its distance from 1.
    FromOne,
}

/// Makes weights. Paths are transformers' names below the decoder, `layers.0.mlp`.
pub(super) struct Weights<'a> {
    /// What stands before the decoder's names in the checkpoint.
    pub root: &'a str,
    pub names: Names,
    pub norm_weight: NormWeight,
    pub eps: f32,
}

impl Weights<'_> {
    /// A tensor as it is.
    pub(super) fn copy(&self, path: &str, shape: &[u32], role: Role) -> Weight {
        let shape: Vec<u64> = shape.iter().map(|&dim| dim.into()).collect();
        Weight::copy(self.names.of(path), self.tensor(path), &shape, role)
    }

    /// A norm over `width` values.
    pub(super) fn norm(&self, module: &str, width: u32) -> Norm {
        let mut weight = self.copy(&format!("{module}.weight"), &[width], Role::Vector);
        if let (NormWeight::FromOne, Recipe::Copy(source)) = (self.norm_weight, &weight.recipe) {
            weight.recipe = Recipe::AddOne(source.clone());
        }
        Norm { weight, eps: self.eps }
    }

    /// A projection `[rows, columns]`.
    pub(super) fn linear(&self, module: &str, [rows, columns]: [u32; 2], bias: bool) -> Linear {
        let weight = |suffix: &str, shape: &[u32], role| {
            self.copy(&format!("{module}.{suffix}"), shape, role)
        };
        Linear {
            weight: weight("weight", &[rows, columns], Role::Linear),
            bias: bias.then(|| weight("bias", &[rows], Role::Vector)),
        }
    }

    /// Projections `parts` (name and rows) of the module `at`, stacked into one that the bundle calls `name`.
    pub(super) fn stacked(
        &self,
        (at, name): (&str, &str),
        parts: &[(&str, u32)],
        columns: u32,
        bias: bool,
    ) -> Linear {
        let weight = |suffix: &str, columns: Option<u32>, role| {
            let shape = |rows: u32| -> Vec<u64> {
                std::iter::once(rows).chain(columns).map(u64::from).collect()
            };
            let source = |&(part, rows): &(&str, u32)| Source {
                tensor: self.tensor(&format!("{at}.{part}.{suffix}")),
                shape: shape(rows),
            };
            Weight {
                name: self.names.of(&format!("{at}.{name}.{suffix}")),
                shape: shape(parts.iter().map(|(_, rows)| rows).sum()),
                role,
                recipe: Recipe::Rows(parts.iter().map(source).collect()),
            }
        };
        Linear {
            weight: weight("weight", Some(columns), Role::Linear),
            bias: bias.then(|| weight("bias", None, Role::Vector)),
        }
    }

    /// The matrices `parts`, `[rows, columns]` each, of all experts of the module `at`: one after the other, expert by
    /// expert, in one weight that the bundle calls `name`.
    pub(super) fn experts(
        &self,
        (at, name): (&str, &str),
        experts: u32,
        parts: &[&str],
        [rows, columns]: [u32; 2],
    ) -> Linear {
        let source = |expert: u32, part: &str| Source {
            tensor: self.tensor(&format!("{at}.experts.{expert}.{part}.weight")),
            shape: vec![rows.into(), columns.into()],
        };
        let sources = (0..experts).flat_map(|e| parts.iter().map(move |part| source(e, part)));
        let weight = Weight {
            name: self.names.of(&format!("{at}.{name}.weight")),
            shape: vec![experts.into(), parts.len() as u64 * u64::from(rows), columns.into()],
            role: Role::Experts,
            recipe: Recipe::Rows(sources.collect()),
        };
        Linear { weight, bias: None }
    }

    /// A projection that gates: quantised only where it is large.
    pub(super) fn gate(&self, module: &str, [rows, columns]: [u32; 2]) -> Linear {
        let mut linear = self.linear(module, [rows, columns], false);
        if rows <= MAX_GATE_ROWS {
            linear.weight.role = Role::Gate;
        }
        linear
    }

    /// A head of its own, made from a tensor.
    pub(super) fn head(tensor: &str, [vocab, hidden]: [u32; 2]) -> Head {
        let shape = [vocab.into(), hidden.into()];
        let weight = Weight::copy("lm_head.weight", tensor, &shape, Role::Head);
        Head::Own(Box::new(Linear { weight, bias: None }))
    }

    fn tensor(&self, path: &str) -> String {
        format!("{}{path}", self.root)
    }
}
