//! Random weight matrices, the same on every run.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// Standard deviation (of the gaussian; the scale of the other): that of weights in a model of a few billion.
const SPREAD: f64 = 0.02;

/// What the values are drawn from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Distribution {
    Gaussian,
    /// Student's t with 4 degrees of freedom: tails about as heavy as those of trained weights.
    StudentT4,
}

impl Distribution {
    /// So many values, seeded by the distribution alone.
    pub(crate) fn values(self, count: usize) -> Vec<f32> {
        let mut rng = ChaCha8Rng::seed_from_u64(self as u64);
        (0..count)
            .map(|_| {
                let value = match self {
                    Self::Gaussian => normal(&mut rng),
                    // A chi-square with 4 degrees of freedom is -2 ln of the product of two uniforms.
                    Self::StudentT4 => {
                        let chi2 = -2.0 * (uniform(&mut rng) * uniform(&mut rng)).ln();
                        normal(&mut rng) / (chi2 / 4.0).sqrt()
                    }
                };
                #[expect(clippy::cast_possible_truncation, reason = "weights are f32")]
                let value = (value * SPREAD) as f32;
                value
            })
            .collect()
    }
}

/// In (0, 1).
fn uniform(rng: &mut impl RngCore) -> f64 {
    ((rng.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
}

/// Box and Muller (1958).
fn normal(rng: &mut impl RngCore) -> f64 {
    let radius = (-2.0 * uniform(rng).ln()).sqrt();
    radius * (std::f64::consts::TAU * uniform(rng)).cos()
}
