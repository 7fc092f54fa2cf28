//! Rotary position embedding (Su et al. 2021): every scaling rule becomes a table of inverse frequencies, made on the CPU.

use serde::{Deserialize, Serialize};

/// A rotary embedding over pairs of values of each head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Rope {
    /// Width of the heads it turns.
    pub head_dim: u32,
    /// How many values at the start of each head are turned; the others stay as they are.
    pub width: u32,
    /// Base of the geometric series of wavelengths.
    pub theta: f64,
    /// How the plain series is changed, mostly for longer contexts.
    pub scaling: Scaling,
    /// Which values are turned together.
    #[serde(default, skip_serializing_if = "Pairing::is_halves")]
    pub pairing: Pairing,
}

/// Which two values of a head pair `i` of `width / 2` turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Pairing {
    /// `i` and `i + width / 2`, as every architecture in transformers that is known here.
    #[default]
    Halves,
    /// `2 i` and `2 i + 1`, as in the paper and in weights that were not permuted for transformers.
    Neighbours,
}

impl Pairing {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
    fn is_halves(&self) -> bool {
        *self == Self::Halves
    }

    /// The first value of pair `i` of `pairs`, and the second.
    pub fn values(self, i: usize, pairs: usize) -> [usize; 2] {
        match self {
            Self::Halves => [i, i + pairs],
            Self::Neighbours => [2 * i, 2 * i + 1],
        }
    }
}

/// A rule of `transformers/modeling_rope_utils.py`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Scaling {
    /// The plain series.
    None,
    /// Positions divided by a factor.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3: long wavelengths divided by `factor`, short ones kept, a smooth blend between.
    Llama3 {
        /// Divisor of the long wavelengths.
        factor: f64,
        /// Wavelengths above `original_context / low_freq_factor` are long.
        low_freq_factor: f64,
        /// Wavelengths below `original_context / high_freq_factor` are short.
        high_freq_factor: f64,
        /// Positions of the unscaled training.
        original_context: u32,
    },
    /// LongRoPE (Ding et al. 2024): a divisor for each frequency, of which there are two sets.
    LongRope {
        /// While a text has at most `original_context` tokens: `[width / 2]`.
        short: Vec<f64>,
        /// From then on, for all of its tokens: `[width / 2]`.
        long: Vec<f64>,
        /// Positions of the unscaled training.
        original_context: u32,
        /// Factor of sines and cosines, under either set.
        attention_factor: f64,
    },
    /// YaRN (Peng et al. 2023): wavelengths that fit often into the unscaled training are kept, those that hardly fit are
    /// divided by `factor`, and between pairs of one and the other kind the blend is linear.
    Yarn {
        /// Divisor of the long wavelengths.
        factor: f64,
        /// A wavelength that fits this often is short.
        beta_fast: f64,
        /// One that fits this often is long.
        beta_slow: f64,
        /// Positions of the unscaled training.
        original_context: u32,
        /// Whether the blend begins and ends at whole pairs.
        truncate: bool,
        /// Factor of sines and cosines.
        attention_factor: f64,
    },
    /// Only the first pairs are turned, as fast as they are in the whole head (Gemma 4).
    Proportional {
        /// How many.
        pairs: u32,
        /// Divisor of positions.
        factor: f64,
    },
}

impl Rope {
    /// The plain embedding of whole heads.
    pub fn plain(head_dim: u32, theta: f64) -> Self {
        Self { head_dim, width: head_dim, theta, scaling: Scaling::None, pairing: Pairing::Halves }
    }

    /// `width / 2` inverse frequencies in radians per position, for a text of `length` tokens.
    ///
    /// Computed in f64 and rounded once; transformers computes in f32, which differs by an ulp or two.
    pub fn inv_freq(&self, length: u32) -> Vec<f32> {
        let pairs = 0..self.width / 2;
        let base = pairs.map(|k| (k, self.theta.powf(-2.0 * f64::from(k) / f64::from(self.width))));
        #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the point")]
        base.map(|(k, freq)| self.scaled(k, freq, length) as f32).collect()
    }

    /// Factor of sines and cosines.
    pub fn attention_factor(&self) -> f32 {
        #[expect(clippy::cast_possible_truncation, reason = "it is used in f32")]
        match self.scaling {
            Scaling::LongRope { attention_factor, .. } | Scaling::Yarn { attention_factor, .. } => {
                attention_factor as f32
            }
            _ => 1.0,
        }
    }

    /// The longest text whose frequencies are the first ones: beyond it all positions are turned differently.
    pub fn turning_point(&self) -> Option<u32> {
        match self.scaling {
            Scaling::LongRope { original_context, .. } => Some(original_context),
            _ => None,
        }
    }

    /// The frequency of pair `k`, which is `freq` in the plain series.
    fn scaled(&self, k: u32, freq: f64, length: u32) -> f64 {
        match &self.scaling {
            Scaling::None => freq,
            Scaling::Linear { factor } => freq / factor,
            Scaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                let turns = f64::from(*original_context) * freq / std::f64::consts::TAU;
                // 0 where the wavelength is long, 1 where it is short.
                let keep = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor))
                    .clamp(0.0, 1.0);
                freq * (keep + (1.0 - keep) / factor)
            }
            Scaling::LongRope { short, long, original_context, .. } => {
                let divisors = if length > *original_context { long } else { short };
                divisors.get(k as usize).map_or(freq, |divisor| freq / divisor)
            }
            Scaling::Yarn { factor, beta_fast, beta_slow, original_context, truncate, .. } => {
                let [low, high] = [*beta_fast, *beta_slow]
                    .map(|turns| self.pair_that_turns(turns, f64::from(*original_context)));
                let [low, high] = if *truncate { [low.floor(), high.ceil()] } else { [low, high] };
                let (low, high) = (low.max(0.0), high.min(f64::from(self.width) - 1.0));
                // transformers avoids the division by zero in this way.
                let high = if low >= high { low + 0.001 } else { high };
                let long = ((f64::from(k) - low) / (high - low)).clamp(0.0, 1.0);
                freq * (long / factor + 1.0 - long)
            }
            Scaling::Proportional { pairs, factor } if k < *pairs => freq / factor,
            Scaling::Proportional { .. } => 0.0,
        }
    }

    /// The (fractional) pair that turns so often in `context` positions.
    fn pair_that_turns(&self, turns: f64, context: f64) -> f64 {
        let wavelengths = (context / (turns * std::f64::consts::TAU)).ln() / self.theta.ln();
        wavelengths * f64::from(self.width) / 2.0
    }
}
