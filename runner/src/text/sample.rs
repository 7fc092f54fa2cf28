//! From logits to the next token.
//!
//! The steps are those of transformers' `GenerationMixin._get_logits_processor`, in its order: repetition penalty,
//! temperature, top-k, top-p, min-p; then a draw. With temperature 0 the most likely token is taken after the penalty.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sampling {
    /// Divides the logits; 0 takes the most likely token always, so that the filters and the seed have no effect.
    pub temperature: f32,
    /// Only the likeliest tokens are drawn from, this many and those as likely as the last of them; 0 means all
    /// (`TopKLogitsWarper`).
    pub top_k: u32,
    /// Only the likeliest tokens that together have this probability among those left by `top_k` are drawn from; at
    /// least one (`TopPLogitsWarper`; Holtzman et al. 2019).
    pub top_p: f32,
    /// Only tokens at least this many times as likely as the likeliest are drawn from (`MinPLogitsWarper`; Nguyen et al.
    /// 2024).
    pub min_p: f32,
    /// Divides the positive logits of tokens that stand in the prompt or the answer so far and multiplies the negative
    /// ones; 1 changes nothing (`RepetitionPenaltyLogitsProcessor`; Keskar et al. 2019, CTRL).
    pub repetition_penalty: f32,
    /// Equal seeds give equal answers to equal logits.
    pub seed: u64,
}

impl Sampling {
    /// The most likely token, the lowest id of equals.
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        seed: 0,
    };

    #[expect(clippy::float_cmp, reason = "only 1 itself changes nothing")]
    /// Whether the token of the highest logit is taken always, so that the logits themselves are not needed.
    pub fn is_argmax(&self) -> bool {
        self.temperature == 0.0 && self.repetition_penalty == 1.0
    }

    /// Whether every setting has a meaning.
    pub fn validate(&self) -> Result<(), SamplingError> {
        let Self { temperature, top_p, min_p, repetition_penalty, .. } = *self;
        if !(temperature.is_finite() && temperature >= 0.0) {
            Err(SamplingError::Temperature(temperature))
        } else if !(0.0..=1.0).contains(&top_p) {
            Err(SamplingError::TopP(top_p))
        } else if !(0.0..=1.0).contains(&min_p) {
            Err(SamplingError::MinP(min_p))
        } else if !(repetition_penalty.is_finite() && repetition_penalty > 0.0) {
            Err(SamplingError::RepetitionPenalty(repetition_penalty))
        } else {
            Ok(())
        }
    }
}

impl Default for Sampling {
    fn default() -> Self {
        Self::GREEDY
    }
}

/// Why no token could be chosen.
#[derive(Debug, thiserror::Error, PartialEq)]
#[non_exhaustive]
pub enum SamplingError {
    #[error("the temperature is {0}, it must be a finite number from 0 on")]
    Temperature(f32),
    #[error("top-p is {0}, it must be from 0 to 1")]
    TopP(f32),
    #[error("min-p is {0}, it must be from 0 to 1")]
    MinP(f32),
    #[error("the repetition penalty is {0}, it must be a finite number above 0")]
    RepetitionPenalty(f32),
    #[error(
        "the logit of token {token} is {logit}: the model's arithmetic has overflowed or its weights are damaged"
    )]
    Logit { token: u32, logit: f32 },
    #[error("all {0} logits are -inf: there is no token to choose")]
    NoToken(usize),
}

/// Chooses the tokens of one answer, one after the other.
pub struct Sampler {
    sampling: Sampling,
    /// ChaCha is specified bit by bit and rand_chacha promises its stream across versions and targets, which neither
    /// rand's `StdRng` nor `SmallRng` does.
    rng: ChaCha8Rng,
    /// The tokens of the prompt and of the answer so far.
    seen: BTreeSet<u32>,
}

impl Sampler {
    /// A sampler for what follows `prompt`.
    pub fn new(sampling: Sampling, prompt: &[u32]) -> Result<Self, SamplingError> {
        sampling.validate()?;
        let rng = ChaCha8Rng::seed_from_u64(sampling.seed);
        Ok(Self { sampling, rng, seen: prompt.iter().copied().collect() })
    }

    /// The next token, given the logits of the whole vocabulary.
    pub fn next(&mut self, logits: &[f32]) -> Result<u32, SamplingError> {
        let likeliest = argmax(logits)?;
        let token = if self.sampling.is_argmax() {
            likeliest
        } else {
            let scores = penalised(logits, &self.seen, self.sampling.repetition_penalty);
            self.choose(&candidates(&scores, self.sampling)).unwrap_or(likeliest)
        };
        self.seen.insert(token);
        Ok(token)
    }

    /// One of the candidates, as often as its weight says.
    fn choose(&mut self, candidates: &[(u32, f64)]) -> Option<u32> {
        if self.sampling.temperature == 0.0 {
            return candidates.first().map(|&(token, _)| token);
        }
        let total: f64 = candidates.iter().map(|&(_, p)| p).sum();
        // 53 bits make every multiple of 2^-53 below 1 equally likely.
        let mut left = (self.rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64 * total;
        for &(token, p) in candidates {
            if left < p {
                return Some(token);
            }
            left -= p;
        }
        // Rounding of the sum can leave a crumb; it belongs to the last.
        candidates.last().map(|&(token, _)| token)
    }
}

/// The most likely token, the lowest id of equals.
pub fn argmax(logits: &[f32]) -> Result<u32, SamplingError> {
    let mut best = (0, f32::NEG_INFINITY);
    for (token, &logit) in (0_u32..).zip(logits) {
        if logit.is_nan() || logit == f32::INFINITY {
            return Err(SamplingError::Logit { token, logit });
        }
        if logit > best.1 {
            best = (token, logit);
        }
    }
    match best {
        (token, logit) if logit > f32::NEG_INFINITY => Ok(token),
        _ => Err(SamplingError::NoToken(logits.len())),
    }
}

/// Scores that are lower for tokens that were seen; in f64, where no penalty makes them infinite.
fn penalised(logits: &[f32], seen: &BTreeSet<u32>, penalty: f32) -> Vec<f64> {
    let penalty = f64::from(penalty);
    let mut scores: Vec<f64> = logits.iter().copied().map(f64::from).collect();
    for &token in seen {
        if let Some(score) = scores.get_mut(token as usize) {
            *score = if *score < 0.0 { *score * penalty } else { *score / penalty };
        }
    }
    scores
}

/// Tokens to draw from, with weights in proportion to their probabilities: likeliest first, unless every token is one of
/// them. Vocabularies have 262,144 tokens, of which few are; only those are sorted.
fn candidates(scores: &[f64], sampling: Sampling) -> Vec<(u32, f64)> {
    let Sampling { temperature, top_k, top_p, min_p, .. } = sampling;
    let mut all: Vec<(u32, f64)> = (0_u32..).zip(scores.iter().copied()).collect();
    let Some(&likeliest) = all.iter().min_by(|a, b| likelier(a, b)) else { return all };
    if temperature == 0.0 {
        return vec![likeliest];
    }
    if let Some(last) = top_k.checked_sub(1).filter(|&last| (last as usize) < all.len()) {
        let (_, &mut (_, least), _) = all.select_nth_unstable_by(last as usize, likelier);
        all.retain(|&(_, score)| score >= least);
        all.sort_unstable_by(likelier);
    }
    for (_, weight) in &mut all {
        *weight = ((*weight - likeliest.1) / f64::from(temperature)).exp();
    }
    all.retain(|&(_, weight)| weight > 0.0);
    if top_p < 1.0 {
        keep_mass(&mut all, top_p);
    }
    // The likeliest has weight 1.
    all.retain(|&(_, weight)| weight >= f64::from(min_p));
    all
}

/// Keeps the likeliest tokens that have this share of the weights, sorted.
fn keep_mass(all: &mut Vec<(u32, f64)>, top_p: f32) {
    let sum = |some: &[(u32, f64)]| some.iter().map(|&(_, weight)| weight).sum::<f64>();
    let wanted = f64::from(top_p) * sum(all);
    let mut enough = 64;
    while enough < all.len() {
        all.select_nth_unstable_by(enough, likelier);
        // With some to spare, since sums in another order round otherwise.
        if sum(&all[..enough]) > wanted * (1.0 + 1e-9) {
            all.truncate(enough);
        }
        enough *= 8;
    }
    all.sort_unstable_by(likelier);
    let mut sum = 0.0;
    let last = all.iter().position(|&(_, weight)| {
        sum += weight;
        sum >= wanted
    });
    all.truncate(last.map_or(all.len(), |last| last + 1));
}

/// Descending; equals stay in the order of their ids.
fn likelier(a: &(u32, f64), b: &(u32, f64)) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLAIN: Sampling = Sampling { temperature: 1.0, ..Sampling::GREEDY };

    fn draw(logits: &[f32], sampling: Sampling, n: usize) -> Vec<u32> {
        let mut sampler = Sampler::new(sampling, &[]).unwrap();
        (0..n).map(|_| sampler.next(logits).unwrap()).collect()
    }

    fn scores(logits: &[f32]) -> Vec<f64> {
        logits.iter().copied().map(f64::from).collect()
    }

    #[test]
    fn greedy_takes_the_lowest_id_of_equals() {
        assert_eq!(draw(&[0.0, 2.0, 1.0, 2.0], Sampling::GREEDY, 1), [1]);
        assert_eq!(argmax(&[f32::NEG_INFINITY, -1e30]), Ok(1));
    }

    #[test]
    fn logits_that_are_no_numbers_are_errors() {
        let error = argmax(&[0.0, f32::NAN]).unwrap_err();
        assert!(error.to_string().starts_with("the logit of token 1 is NaN"), "{error}");
        assert!(matches!(argmax(&[f32::INFINITY]), Err(SamplingError::Logit { token: 0, .. })));
        assert_eq!(argmax(&[f32::NEG_INFINITY; 3]), Err(SamplingError::NoToken(3)));
        assert_eq!(argmax(&[]), Err(SamplingError::NoToken(0)));
    }

    #[test]
    fn settings_out_of_range_are_errors() {
        let fault = |sampling: Sampling| sampling.validate().err();
        let wrong = Sampling { temperature: -1.0, ..PLAIN };
        assert_eq!(fault(wrong), Some(SamplingError::Temperature(-1.0)));
        assert!(fault(Sampling { temperature: f32::NAN, ..PLAIN }).is_some());
        assert_eq!(fault(Sampling { top_p: 1.5, ..PLAIN }), Some(SamplingError::TopP(1.5)));
        assert_eq!(fault(Sampling { min_p: -0.1, ..PLAIN }), Some(SamplingError::MinP(-0.1)));
        let wrong = Sampling { repetition_penalty: 0.0, ..PLAIN };
        assert_eq!(fault(wrong), Some(SamplingError::RepetitionPenalty(0.0)));
        assert_eq!(fault(Sampling { top_p: 0.0, min_p: 1.0, ..PLAIN }), None);
        assert!(Sampler::new(wrong, &[]).is_err());
    }

    /// transformers 5.23 over the same logits, its warpers one after the other, in f64; tokens 3, 5 and 6 were seen.
    #[test]
    fn distributions_are_those_of_transformers() {
        let logits = [-0.5, 1.5, 0.5, 2.0, 1.5, -1.0, 1.0, 0.25];
        let seen = BTreeSet::from([3, 5, 6]);
        #[rustfmt::skip]
        let expected: [(Sampling, [f64; 8]); 9] = [
            (PLAIN, [0.026_396_29, 0.195_043_69, 0.071_752_56, 0.321_572_68, 0.195_043_69, 0.016_010_16, 0.118_299_98, 0.055_880_95]),
            (Sampling { repetition_penalty: 1.5, ..PLAIN }, [0.032_843_69, 0.242_683_9, 0.089_278_42, 0.205_427_48, 0.242_683_9, 0.012_082_52, 0.105_469_99, 0.069_530_1]),
            (Sampling { temperature: 0.5, ..PLAIN }, [0.003_437_21, 0.187_665_32, 0.025_397_74, 0.510_127_22, 0.187_665_32, 0.001_264_48, 0.069_038_21, 0.015_404_51]),
            (Sampling { top_k: 2, ..PLAIN }, [0.0, 0.274_068_62, 0.0, 0.451_862_76, 0.274_068_62, 0.0, 0.0, 0.0]),
            (Sampling { top_k: 5, top_p: 0.75, ..PLAIN }, [0.0, 0.274_068_62, 0.0, 0.451_862_76, 0.274_068_62, 0.0, 0.0, 0.0]),
            (Sampling { top_p: 0.6, ..PLAIN }, [0.0, 0.274_068_62, 0.0, 0.451_862_76, 0.274_068_62, 0.0, 0.0, 0.0]),
            (Sampling { min_p: 0.3, ..PLAIN }, [0.0, 0.235_003_71, 0.0, 0.387_455_62, 0.235_003_71, 0.0, 0.142_536_96, 0.0]),
            (Sampling { temperature: 2.0, min_p: 0.5, ..PLAIN }, [0.0, 0.246_134_08, 0.0, 0.316_042_42, 0.246_134_08, 0.0, 0.191_689_42, 0.0]),
            (Sampling { repetition_penalty: 1.25, temperature: 0.75, top_k: 6, top_p: 0.9, min_p: 0.25, ..PLAIN }, [0.0, 0.282_815_7, 0.0, 0.323_153_94, 0.282_815_7, 0.0, 0.111_214_65, 0.0]),
        ];
        for (sampling, expected) in expected {
            let scores = penalised(&logits, &seen, sampling.repetition_penalty);
            let kept = candidates(&scores, sampling);
            let total: f64 = kept.iter().map(|&(_, weight)| weight).sum();
            let mut found = [0.0; 8];
            for &(token, weight) in &kept {
                found[token as usize] = weight / total;
            }
            for (token, (found, expected)) in found.iter().zip(expected).enumerate() {
                assert!((found - expected).abs() < 1e-7, "{sampling:?}: token {token} {found}");
            }
        }
    }

    #[test]
    fn greedy_answers_heed_the_penalty() {
        let sampling = Sampling { repetition_penalty: 2.0, ..Sampling::GREEDY };
        // 3 of the prompt is halved; then each token is, once it has come: 4.0 and 3.5 become 2.0 and 1.75.
        let mut sampler = Sampler::new(sampling, &[3]).unwrap();
        let logits = [3.5, 2.5, -1.0, 4.0];
        let drawn: Vec<u32> = (0..4).map(|_| sampler.next(&logits).unwrap()).collect();
        assert_eq!(drawn, [0, 1, 3, 3]);
        // A negative logit is multiplied: -1 becomes -2, below -1.5.
        let mut sampler = Sampler::new(sampling, &[0]).unwrap();
        assert_eq!(sampler.next(&[-1.0, -1.5]), Ok(1));
    }

    #[test]
    fn tokens_come_as_often_as_they_are_likely() {
        // ln 1, ln 2, ln 5: probabilities 1/8, 2/8, 5/8.
        let logits = [0.0, 2_f32.ln(), 5_f32.ln()];
        let drawn = draw(&logits, Sampling { seed: 3, ..PLAIN }, 8000);
        for (token, expected) in [(0, 1000.0), (1, 2000.0), (2, 5000.0)] {
            let count = drawn.iter().filter(|&&t| t == token).count() as f64;
            assert!((count - expected).abs() < 150.0, "token {token}: {count}");
        }
        let drawn = draw(&logits, Sampling { top_p: 0.8, seed: 3, ..PLAIN }, 1000);
        assert!(!drawn.contains(&0) && drawn.contains(&1));
    }

    #[test]
    fn the_stream_of_a_seed_never_changes() {
        let drawn = draw(&[0.0; 1000], Sampling { seed: 42, ..PLAIN }, 6);
        assert_eq!(drawn, [681, 950, 427, 627, 288, 149]);
    }

    /// All of them sorted, then what top-k, top-p and min-p leave, one after the other.
    fn sorted_candidates(scores: &[f64], sampling: Sampling) -> Vec<u32> {
        let mut all: Vec<(u32, f64)> = (0..).zip(scores.iter().copied()).collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        if sampling.top_k > 0 && (sampling.top_k as usize) < all.len() {
            let least = all[sampling.top_k as usize - 1].1;
            all.retain(|&(_, score)| score >= least);
        }
        let max = all[0].1;
        let weight = |score: f64| ((score - max) / f64::from(sampling.temperature)).exp();
        let total: f64 = all.iter().map(|&(_, score)| weight(score)).sum();
        let mut before = 0.0;
        let mut kept = Vec::new();
        for (token, score) in all {
            if before < f64::from(sampling.top_p) * total * (1.0 - 1e-12) || kept.is_empty() {
                kept.push((token, weight(score)));
            }
            before += weight(score);
        }
        kept.retain(|&(_, weight)| weight >= f64::from(sampling.min_p));
        kept.into_iter().map(|(token, _)| token).collect()
    }

    proptest! {
        #[test]
        fn few_are_sorted_and_the_same_are_kept(
            logits in prop::collection::vec(-10..10_i8, 1..2000),
            (top_k, top_p, min_p) in (0..300_u32, 0.0..1_f32, 0.0..0.2_f32),
        ) {
            // Many equals, and scores that sum to what is exact enough.
            let scores: Vec<f64> = logits.iter().map(|&logit| f64::from(logit) / 4.0).collect();
            let sampling = Sampling { top_k, top_p, min_p, ..PLAIN };
            let found = candidates(&scores, sampling).iter().map(|&(token, _)| token).collect::<Vec<_>>();
            prop_assert_eq!(found, sorted_candidates(&scores, sampling));
        }

        #[test]
        fn a_vanishing_top_p_is_greedy(logits in prop::collection::vec(-20.0..20_f32, 1..50), seed: u64) {
            let sampling = Sampling { top_p: 1e-6, seed, ..PLAIN };
            prop_assert_eq!(draw(&logits, sampling, 3), [argmax(&logits).unwrap(); 3]);
        }

        #[test]
        fn seeds_reproduce(logits in prop::collection::vec(-5.0..5_f32, 1..50), seed: u64) {
            let sampling = Sampling { temperature: 0.9, top_k: 40, top_p: 0.95, seed, ..PLAIN };
            prop_assert_eq!(draw(&logits, sampling, 8), draw(&logits, sampling, 8));
        }

        #[test]
        fn the_kept_tokens_have_the_wanted_probability(
            logits in prop::collection::vec(-5.0..5_f32, 1..50),
            top_p in 0.0..=1_f32,
        ) {
            let warm = Sampling { temperature: 0.7, ..PLAIN };
            let mut all = candidates(&scores(&logits), warm);
            all.sort_by(likelier);
            let kept = candidates(&scores(&logits), Sampling { top_p, ..warm });
            let sum = |tokens: &[(u32, f64)]| tokens.iter().map(|t| t.1).sum::<f64>();
            prop_assert_eq!(&kept[..], &all[..kept.len()]);
            let wanted = f64::from(top_p) * sum(&all);
            prop_assert!(sum(&kept) >= wanted * (1.0 - 1e-12));
            prop_assert!(sum(&kept[..kept.len() - 1]) < wanted || kept.len() == 1);
        }
    }
}
