//! From logits to the next token.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the most likely token always.
    pub temperature: f32,
    /// Only the likeliest tokens that together have this probability are drawn from; at least one.
    pub top_p: f32,
    /// Equal seeds give equal answers to equal logits.
    pub seed: u64,
}

impl Sampling {
    /// The most likely token, the lowest id of equals.
    pub const GREEDY: Self = Self { temperature: 0.0, top_p: 1.0, seed: 0 };

    /// Whether the most likely token is taken always, so that the logits themselves are not needed.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }
}

/// Why no token could be chosen.
#[derive(Debug, thiserror::Error, PartialEq)]
#[non_exhaustive]
pub enum SamplingError {
    #[error("temperature is {0}, it must be a finite number from 0 on")]
    Temperature(f32),
    #[error("top-p is {0}, it must be from 0 to 1")]
    TopP(f32),
    #[error(
        "the logit of token {token} is {logit}: the model's arithmetic has overflowed or its weights are damaged"
    )]
    Logit { token: u32, logit: f32 },
    #[error("all {0} logits are -inf: there is no token to choose")]
    NoToken(usize),
}

/// Chooses tokens, one after the other.
pub struct Sampler {
    sampling: Sampling,
    /// ChaCha is specified bit by bit and rand_chacha promises its stream across versions and targets, which neither
    /// rand's `StdRng` nor `SmallRng` does.
    rng: ChaCha8Rng,
}

impl Sampler {
    pub fn new(sampling: Sampling) -> Result<Self, SamplingError> {
        if !(sampling.temperature.is_finite() && sampling.temperature >= 0.0) {
            return Err(SamplingError::Temperature(sampling.temperature));
        }
        if !(0.0..=1.0).contains(&sampling.top_p) {
            return Err(SamplingError::TopP(sampling.top_p));
        }
        Ok(Self { sampling, rng: ChaCha8Rng::seed_from_u64(sampling.seed) })
    }

    /// The next token, given the logits of the whole vocabulary.
    pub fn next(&mut self, logits: &[f32]) -> Result<u32, SamplingError> {
        let greedy = argmax(logits)?;
        if self.sampling.temperature == 0.0 {
            return Ok(greedy);
        }
        let candidates = candidates(logits, self.sampling);
        let total: f64 = candidates.iter().map(|&(_, p)| p).sum();
        // 53 bits make every multiple of 2^-53 below 1 equally likely.
        let mut left = (self.rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64 * total;
        for &(token, p) in &candidates {
            if left < p {
                return Ok(token);
            }
            left -= p;
        }
        // Rounding of the sum can leave a crumb; it belongs to the last.
        Ok(candidates.last().map_or(greedy, |&(token, _)| token))
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

/// Tokens to draw from, likeliest first, with weights in proportion to their probabilities.
fn candidates(logits: &[f32], sampling: Sampling) -> Vec<(u32, f64)> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |logit: f32| (f64::from(logit - max) / f64::from(sampling.temperature)).exp();
    let mut all: Vec<_> = (0_u32..).zip(logits.iter().map(|&logit| weight(logit))).collect();
    all.retain(|&(_, weight)| weight > 0.0);
    // Stable, so that equals stay in the order of their ids.
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    let total: f64 = all.iter().map(|&(_, weight)| weight).sum();
    let wanted = f64::from(sampling.top_p) * total;
    let mut sum = 0.0;
    let kept = all.iter().position(|&(_, weight)| {
        sum += weight;
        sum >= wanted
    });
    all.truncate(kept.map_or(all.len(), |last| last + 1));
    all
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn draw(logits: &[f32], sampling: Sampling, n: usize) -> Vec<u32> {
        let mut sampler = Sampler::new(sampling).unwrap();
        (0..n).map(|_| sampler.next(logits).unwrap()).collect()
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
        let new = |temperature, top_p| Sampler::new(Sampling { temperature, top_p, seed: 0 }).err();
        assert_eq!(new(-1.0, 1.0), Some(SamplingError::Temperature(-1.0)));
        assert!(new(f32::NAN, 1.0).is_some());
        assert_eq!(new(1.0, 1.5), Some(SamplingError::TopP(1.5)));
        assert_eq!(new(0.0, 0.0), None);
    }

    #[test]
    fn tokens_come_as_often_as_they_are_likely() {
        // ln 1, ln 2, ln 5: probabilities 1/8, 2/8, 5/8.
        let logits = [0.0, 2_f32.ln(), 5_f32.ln()];
        let drawn = draw(&logits, Sampling { temperature: 1.0, top_p: 1.0, seed: 3 }, 8000);
        for (token, expected) in [(0, 1000.0), (1, 2000.0), (2, 5000.0)] {
            let count = drawn.iter().filter(|&&t| t == token).count() as f64;
            assert!((count - expected).abs() < 150.0, "token {token}: {count}");
        }
        let drawn = draw(&logits, Sampling { temperature: 1.0, top_p: 0.8, seed: 3 }, 1000);
        assert!(!drawn.contains(&0) && drawn.contains(&1));
    }

    #[test]
    fn the_stream_of_a_seed_never_changes() {
        let drawn = draw(&[0.0; 1000], Sampling { temperature: 1.0, top_p: 1.0, seed: 42 }, 6);
        assert_eq!(drawn, [681, 950, 427, 627, 288, 149]);
    }

    proptest! {
        #[test]
        fn a_vanishing_top_p_is_greedy(logits in prop::collection::vec(-20.0..20_f32, 1..50), seed: u64) {
            let sampling = Sampling { temperature: 1.0, top_p: 1e-6, seed };
            prop_assert_eq!(draw(&logits, sampling, 3), [argmax(&logits).unwrap(); 3]);
        }

        #[test]
        fn seeds_reproduce(logits in prop::collection::vec(-5.0..5_f32, 1..50), seed: u64) {
            let sampling = Sampling { temperature: 0.9, top_p: 0.95, seed };
            prop_assert_eq!(draw(&logits, sampling, 8), draw(&logits, sampling, 8));
        }

        #[test]
        fn the_kept_tokens_have_the_wanted_probability(
            logits in prop::collection::vec(-5.0..5_f32, 1..50),
            top_p in 0.0..=1_f32,
        ) {
            let all = candidates(&logits, Sampling { temperature: 0.7, top_p: 1.0, seed: 0 });
            let kept = candidates(&logits, Sampling { temperature: 0.7, top_p, seed: 0 });
            let sum = |tokens: &[(u32, f64)]| tokens.iter().map(|t| t.1).sum::<f64>();
            prop_assert_eq!(&kept[..], &all[..kept.len()]);
            let wanted = f64::from(top_p) * sum(&all);
            prop_assert!(sum(&kept) >= wanted * (1.0 - 1e-12));
            prop_assert!(sum(&kept[..kept.len() - 1]) < wanted || kept.len() == 1);
        }
    }
}
