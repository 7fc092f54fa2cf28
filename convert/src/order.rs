//! The order in which MLC emits parameters, and how it counts them (mlc_llm/loader/huggingface_loader.py).

use std::collections::{BTreeSet, HashMap};

use packlight_formats::dtype::elements;
use packlight_formats::model::Weight;

use crate::checkpoint::Checkpoint;

/// Indices into `weights`, each at the place where the first of its sources is met in the loading order.
pub(crate) fn emission_order(weights: &[&Weight], checkpoint: &Checkpoint) -> Vec<usize> {
    let mut users: HashMap<&str, Vec<usize>> = HashMap::new();
    for (i, weight) in weights.iter().enumerate() {
        for source in weight.recipe.sources() {
            users.entry(&source.tensor).or_default().push(i);
        }
    }
    let mut seen = BTreeSet::new();
    let met = checkpoint
        .order()
        .iter()
        .flat_map(|tensor| users.get(tensor.as_str()).into_iter().flatten());
    met.copied().filter(|&i| seen.insert(i)).collect()
}

/// The parameters of the checkpoint as MLC counts them for `BitsPerParam`.
///
/// Its loader adds up every tensor of a file each time it loads the file, and drops files that the next parameter does
/// not need: a file that is needed again is counted again. Rotary tables are declared unused and not counted.
pub(crate) fn counted_parameters(emitted: &[&Weight], checkpoint: &Checkpoint) -> u64 {
    let parameters = |file: usize| -> u64 {
        let counted = checkpoint.files()[file]
            .tensors
            .iter()
            .filter(|t| !t.name.ends_with(".rotary_emb.inv_freq"));
        counted.filter_map(|tensor| elements(&tensor.shape)).sum()
    };
    let mut loaded: BTreeSet<usize> = BTreeSet::new();
    let mut total = 0;
    for weight in emitted {
        let sources = weight.recipe.sources().iter();
        let needed: BTreeSet<usize> =
            sources.filter_map(|s| checkpoint.tensor(&s.tensor)).map(|(file, _)| file).collect();
        if !needed.is_subset(&loaded) {
            total += needed.difference(&loaded).map(|&file| parameters(file)).sum::<u64>();
            // What stays loaded is what is needed, old or new.
            loaded = needed;
        }
    }
    total
}
