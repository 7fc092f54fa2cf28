//! Rotary position embedding (Su et al. 2021): every scaling rule becomes a table of inverse frequencies, made on the CPU.

use serde::{Deserialize, Serialize};

/// A rotary embedding over pairs `(i, i + width / 2)` of each head.
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
        Self { head_dim, width: head_dim, theta, scaling: Scaling::None }
    }

    /// `width / 2` inverse frequencies in radians per position, for a text of `length` tokens.
    ///
    /// Computed in f64 and rounded once; transformers computes in f32, which differs by an ulp or two.
    pub fn inv_freq(&self, length: u32) -> Vec<f32> {
        let pairs = 0..self.width / 2;
        let base = pairs.map(|k| (k, self.theta.powf(-2.0 * f64::from(k) / f64::from(self.width))));
        #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the point")]
        base.map(|(k, freq)| self.scaling.apply(k, freq, length) as f32).collect()
    }

    /// Factor of sines and cosines.
    pub fn attention_factor(&self) -> f32 {
        #[expect(clippy::cast_possible_truncation, reason = "it is used in f32")]
        match self.scaling {
            Scaling::LongRope { attention_factor, .. } => attention_factor as f32,
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
}

impl Scaling {
    /// The frequency of pair `k`, which is `freq` in the plain series.
    fn apply(&self, k: u32, freq: f64, length: u32) -> f64 {
        match self {
            Self::None => freq,
            Self::Linear { factor } => freq / factor,
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                let turns = f64::from(*original_context) * freq / std::f64::consts::TAU;
                // 0 where the wavelength is long, 1 where it is short.
                let keep = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor))
                    .clamp(0.0, 1.0);
                freq * (keep + (1.0 - keep) / factor)
            }
            Self::LongRope { short, long, original_context, .. } => {
                let divisors = if length > *original_context { long } else { short };
                divisors.get(k as usize).map_or(freq, |divisor| freq / divisor)
            }
            Self::Proportional { pairs, factor } if k < *pairs => freq / factor,
            Self::Proportional { .. } => 0.0,
        }
    }
}
