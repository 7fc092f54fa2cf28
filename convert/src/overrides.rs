//! Schemes of single weights, chosen by patterns over their names.

use packlight_formats::manifest::packlight::Override;
use packlight_formats::model::Weight;
use packlight_formats::quant::{Assignment, Scheme};
use regex::Regex;

/// Why a pattern cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum OverrideError {
    #[error("override pattern `{pattern}` is no regular expression: {reason}")]
    Pattern { pattern: String, reason: String },
    #[error("override pattern `{pattern}` matches no weight of the model")]
    MatchesNothing { pattern: String },
    #[error("override `{pattern}` names scheme `{scheme}`, which is not known")]
    UnknownScheme { pattern: String, scheme: String },
}

/// A pattern over bundle names of weights, and the scheme of those that it matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverrideRule {
    /// A regular expression that may match anywhere in the name.
    pub pattern: String,
    /// Name of a scheme.
    pub scheme: String,
}

/// Applies rules in order, so that a later one wins where several match, and says what each matched.
pub(crate) fn assign(
    usual: &'static Scheme,
    rules: &[OverrideRule],
    weights: &[&Weight],
) -> Result<(Assignment, Vec<Override>), OverrideError> {
    let mut assignment = Assignment::uniform(usual);
    let mut overrides = Vec::new();
    for OverrideRule { pattern, scheme: name } in rules {
        let regex = Regex::new(pattern).map_err(|error| OverrideError::Pattern {
            pattern: pattern.clone(),
            reason: error.to_string(),
        })?;
        let scheme = Scheme::find(name).ok_or_else(|| OverrideError::UnknownScheme {
            pattern: pattern.clone(),
            scheme: name.clone(),
        })?;
        let names =
            weights.iter().map(|weight| weight.name.clone()).filter(|name| regex.is_match(name));
        let names: Vec<String> = names.collect();
        if names.is_empty() {
            return Err(OverrideError::MatchesNothing { pattern: pattern.clone() });
        }
        for weight in &names {
            assignment.except(weight, scheme);
        }
        overrides.push(Override { pattern: pattern.clone(), scheme: name.clone(), weights: names });
    }
    Ok((assignment, overrides))
}
