//! A conversion before its first byte: what will be written, from what, and everything that stands against it.

use std::collections::HashMap;

use packlight_formats::arch;
use packlight_formats::fp8::SCALE_SUFFIX;
use packlight_formats::manifest::packlight::{Override, Provenance};
use packlight_formats::model::{Model, Source, Weight};
use packlight_formats::quant::{Assignment, Codes, Scheme, Storage};
use packlight_formats::record::RecordSpec;

use crate::checkpoint::Checkpoint;
use crate::element::Element;
use crate::error::{ConvertError, Fault};
use crate::order::{counted_parameters, emission_order};
use crate::overrides::{OverrideRule, assign};
use crate::scales::scale_fault;

/// A checkpoint that is known to fit its description.
#[derive(Debug)]
pub struct Conversion<'a> {
    pub(crate) checkpoint: &'a Checkpoint,
    pub model: Model,
    /// The scheme of every weight.
    pub assignment: Assignment,
    /// The exceptions among them, as packlight.json lists them.
    pub overrides: Vec<Override>,
    pub codes: &'static Codes,
    /// In the order in which they are emitted.
    pub weights: Vec<PlannedWeight>,
    /// Tensors that are left out on purpose, and why.
    pub skipped: Vec<(String, &'static str)>,
    /// The parameter count behind MLC's `BitsPerParam`.
    pub counted_parameters: u64,
}

/// A weight and the records that it becomes.
#[derive(Debug)]
pub struct PlannedWeight {
    pub weight: Weight,
    pub scheme: &'static Scheme,
    pub storage: Storage,
}

impl<'a> Conversion<'a> {
    /// Describes the checkpoint's model and checks every tensor against it, listing all faults at once.
    pub fn plan(
        checkpoint: &'a Checkpoint,
        scheme: &'static Scheme,
        rules: &[OverrideRule],
        codes: &'static Codes,
    ) -> Result<Self, ConvertError> {
        let model = checkpoint.describe()?;
        let weights = model.weights();
        let (skipped, faults) = check(&model, &weights, checkpoint);
        if !faults.is_empty() {
            return Err(ConvertError::Faults(faults));
        }
        let (assignment, overrides) = assign(scheme, rules, &weights)?;
        let order = emission_order(&weights, checkpoint);
        let emitted: Vec<&Weight> = order.iter().map(|&i| weights[i]).collect();
        let counted_parameters = counted_parameters(&emitted, checkpoint);
        let planned = emitted.iter().map(|&weight| PlannedWeight {
            weight: weight.clone(),
            scheme: assignment.scheme(weight),
            storage: assignment.storage(weight),
        });
        let weights = planned.collect();
        Ok(Self {
            checkpoint,
            model,
            assignment,
            overrides,
            codes,
            weights,
            skipped,
            counted_parameters,
        })
    }

    /// Whether any weight gets codes.
    pub fn quantises(&self) -> bool {
        self.weights.iter().any(|planned| matches!(planned.storage, Storage::Grouped { .. }))
    }

    /// Every record in the order in which it is written.
    pub fn records(&self) -> Vec<RecordSpec> {
        self.weights.iter().flat_map(|weight| weight.storage.records().cloned()).collect()
    }

    /// What packlight.json says of the source.
    pub fn provenance(&self) -> Provenance {
        self.checkpoint.provenance()
    }

    /// What it converts.
    pub fn checkpoint(&self) -> &'a Checkpoint {
        self.checkpoint
    }

    /// Bytes of the tensors that are read.
    pub fn source_bytes(&self) -> u64 {
        self.weights.iter().map(|planned| planned.source_bytes(self.checkpoint)).sum()
    }
}

impl PlannedWeight {
    pub(crate) fn source_bytes(&self, checkpoint: &Checkpoint) -> u64 {
        let sources = self.weight.recipe.sources().iter();
        sources
            .filter_map(|source| checkpoint.tensor(&source.tensor))
            .map(|(_, tensor)| tensor.span.end - tensor.span.start)
            .sum()
    }
}

type Skipped = Vec<(String, &'static str)>;

fn check(model: &Model, weights: &[&Weight], checkpoint: &Checkpoint) -> (Skipped, Vec<Fault>) {
    let mut needed: HashMap<&str, (&Source, &Weight)> = HashMap::new();
    let mut faults = Vec::new();
    for weight in weights {
        for source in weight.recipe.sources() {
            needed.insert(&source.tensor, (source, weight));
            if checkpoint.tensor(&source.tensor).is_none() {
                faults.push(Fault::Missing {
                    tensor: source.tensor.clone(),
                    weight: weight.name.clone(),
                });
            }
        }
    }
    let mut skipped = Vec::new();
    for tensor_name in checkpoint.order() {
        let Some((file, tensor)) = checkpoint.tensor(tensor_name) else {
            // One that is needed is reported above.
            if !needed.contains_key(tensor_name.as_str()) {
                skipped.push((
                    tensor_name.clone(),
                    "in the index, but in no file; no weight needs it",
                ));
            }
            continue;
        };
        let (name, file) = (|| tensor.name.clone(), || checkpoint.files()[file].name.clone());
        let scales =
            |weight: &str| needed.contains_key(weight) && checkpoint.fp8_scales().is_some();
        if tensor_name.strip_suffix(SCALE_SUFFIX).is_some_and(scales) {
            faults.extend(checkpoint.ambiguity(tensor_name));
            continue;
        }
        let Some((source, _)) = needed.get(tensor_name.as_str()) else {
            let reason = arch::skip_reason(model, tensor_name);
            skipped.push((name(), reason.unwrap_or("belongs to no weight of the model")));
            continue;
        };
        faults.extend(checkpoint.ambiguity(tensor_name));
        if tensor.shape != source.shape {
            let (found, expected) = (tensor.shape.clone(), source.shape.clone());
            faults.push(Fault::WrongShape { tensor: name(), file: file(), found, expected });
        }
        let scaled = checkpoint.fp8_scales().is_some();
        match Element::of(tensor.dtype) {
            Some(Element::E4m3) if scaled => faults.extend(scale_fault(checkpoint, tensor)),
            Some(element) if element != Element::E4m3 => {}
            _ => faults.push(Fault::WrongDtype {
                tensor: name(),
                file: file(),
                dtype: format!("{:?}", tensor.dtype),
            }),
        }
    }
    (skipped, faults)
}
