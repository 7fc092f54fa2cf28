//! Rotary position embedding (Su et al. 2021): every scaling rule becomes a table of inverse frequencies, made on the CPU.

use serde::{Deserialize, Serialize};

/// A rotary embedding over pairs `(i, i + head_dim / 2)` of each head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rope {
    /// Width of the heads it turns.
    pub head_dim: u32,
    /// Base of the geometric series of wavelengths.
    pub theta: f64,
    /// How the plain series is changed for longer contexts.
    pub scaling: Scaling,
}

/// A rule of `transformers/modeling_rope_utils.py`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
}

impl Rope {
    /// `head_dim / 2` inverse frequencies in radians per position.
    ///
    /// Computed in f64 and rounded once; transformers computes in f32, which differs by an ulp or two.
    pub fn inv_freq(&self) -> Vec<f32> {
        let pairs = self.head_dim / 2;
        let base =
            (0..pairs).map(|k| self.theta.powf(-2.0 * f64::from(k) / f64::from(self.head_dim)));
        #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the point")]
        base.map(|freq| self.scaling.apply(freq) as f32).collect()
    }
}

impl Scaling {
    fn apply(&self, freq: f64) -> f64 {
        match *self {
            Self::None => freq,
            Self::Linear { factor } => freq / factor,
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                let turns = f64::from(original_context) * freq / std::f64::consts::TAU;
                // 0 where the wavelength is long, 1 where it is short.
                let keep = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor))
                    .clamp(0.0, 1.0);
                freq * (keep + (1.0 - keep) / factor)
            }
        }
    }
}
