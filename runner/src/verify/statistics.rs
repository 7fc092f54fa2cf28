//! How far one model's predictions are from another's, in the terms of llama-perplexity's `--kl-divergence`.
//!
//! `base` is the model that is held to be right, `Q` the other. Standard errors are those of a mean of independent
//! positions, as llama-perplexity has them; neighbouring positions are not quite independent.

use rayon::prelude::*;
use serde::ser::SerializeMap;

/// A figure and its standard error, where it has one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// llama-perplexity's name for it.
    pub name: &'static str,
    pub value: f64,
    pub error: Option<f64>,
}

/// What a position says about two models.
#[derive(Clone, Copy, Debug)]
struct Position {
    /// Kullback-Leibler divergence of `Q` from `base`, in nats.
    kld: f64,
    /// Whether both find the same token likeliest.
    same_top: bool,
    /// Negative log likelihoods of the token that follows, where one does: `base`'s, then `Q`'s.
    nll: Option<[f64; 2]>,
}

/// Positions, as they were compared.
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    positions: Vec<Position>,
}

impl Statistics {
    /// Compares logits `[positions, vocab]`; `next` has the token that follows each position, as far as there is one.
    pub fn add(&mut self, base: &[f32], q: &[f32], vocab: usize, next: &[u32]) {
        let rows = base.par_chunks(vocab).zip(q.par_chunks(vocab)).enumerate();
        self.positions.par_extend(rows.map(|(i, (base, q))| {
            let sums = [base, q].map(log_sum_exp);
            let nll = |token: &u32| {
                let of = |logits: &[f32], sum| {
                    logits.get(*token as usize).map(|logit| sum - f64::from(*logit))
                };
                Some([of(base, sums[0])?, of(q, sums[1])?])
            };
            Position {
                kld: divergence(base, q, sums),
                same_top: argmax(base) == argmax(q),
                nll: next.get(i).and_then(nll),
            }
        }));
    }

    /// Positions compared.
    pub fn positions(&self) -> usize {
        self.positions.len()
    }

    /// Positions with a token that follows.
    pub fn predictions(&self) -> usize {
        self.nll().count()
    }

    /// Whether every figure is a number.
    pub fn is_finite(&self) -> bool {
        self.positions.iter().all(|p| {
            p.kld.is_finite() && p.nll.is_none_or(|nll| nll.iter().all(|nll| nll.is_finite()))
        })
    }

    /// Mean Kullback-Leibler divergence.
    pub fn mean_kld(&self) -> f64 {
        Mean::of(self.positions.iter().map(|p| p.kld)).value
    }

    /// Share of positions at which both find the same token likeliest.
    pub fn same_top(&self) -> f64 {
        self.positions.iter().filter(|p| p.same_top).count() as f64 / self.positions.len() as f64
    }

    /// Mean negative log likelihoods: `base`'s, then `Q`'s.
    pub fn mean_nll(&self) -> [f64; 2] {
        [0, 1].map(|i| Mean::of(self.nll().map(|nll| nll[i])).value)
    }

    /// `PPL(Q) / PPL(base)`.
    pub fn perplexity_ratio(&self) -> f64 {
        let [base, q] = self.mean_nll();
        (q - base).exp()
    }

    fn nll(&self) -> impl Iterator<Item = [f64; 2]> + Clone {
        self.positions.iter().filter_map(|p| p.nll)
    }

    /// Everything that llama-perplexity prints, under its names and in its order.
    pub fn figures(&self) -> Vec<Figure> {
        let mut figures = Vec::new();
        let mut add = |name, value, error| figures.push(Figure { name, value, error });
        let [base, q] = [0, 1].map(|i| Mean::of(self.nll().map(|nll| nll[i])));
        let ln_ratio = Mean::of(self.nll().map(|nll| nll[1] - nll[0]));
        // Covariance of the means, by way of the variance of their difference.
        let covariance = (base.error.powi(2) + q.error.powi(2) - ln_ratio.error.powi(2)) / 2.0;
        let [ppl_base, ppl_q] = [base.value.exp(), q.value.exp()];
        let [error_base, error_q] = [ppl_base * base.error, ppl_q * q.error];
        let difference_error =
            error_q.powi(2) + error_base.powi(2) - 2.0 * covariance * ppl_base * ppl_q;
        add("Mean PPL(Q)", ppl_q, Some(error_q));
        add("Mean PPL(base)", ppl_base, Some(error_base));
        add("Cor(ln(PPL(Q)), ln(PPL(base)))", covariance / (base.error * q.error), None);
        add("Mean ln(PPL(Q)/PPL(base))", ln_ratio.value, Some(ln_ratio.error));
        let ratio = ln_ratio.value.exp();
        add("Mean PPL(Q)/PPL(base)", ratio, Some(ratio * ln_ratio.error));
        add("Mean PPL(Q)-PPL(base)", ppl_q - ppl_base, Some(difference_error.max(0.0).sqrt()));

        let klds = self.positions.iter().map(|p| p.kld);
        let kld = Mean::of(klds.clone());
        let klds = Sorted::of(klds);
        add("Mean KLD", kld.value, Some(kld.error));
        add("Maximum KLD", klds.quantile(1.0), None);
        add("99.9% KLD", klds.quantile(0.999), None);
        add("99.0% KLD", klds.quantile(0.99), None);
        add("95.0% KLD", klds.quantile(0.95), None);
        add("90.0% KLD", klds.quantile(0.9), None);
        add("Median KLD", klds.quantile(0.5), None);
        add("10.0% KLD", klds.quantile(0.1), None);
        add("Minimum KLD", klds.quantile(0.0), None);

        let changes = self.nll().map(|nll| (-nll[1]).exp() - (-nll[0]).exp());
        let change = Mean::of(changes.clone());
        let square = Mean::of(changes.clone().map(|dp| dp * dp));
        let changes = Sorted::of(changes);
        let rms = square.value.sqrt();
        add("Mean Δp", change.value, Some(change.error));
        add("Maximum Δp", changes.quantile(1.0), None);
        add("99.9% Δp", changes.quantile(0.999), None);
        add("95.0% Δp", changes.quantile(0.95), None);
        add("Median Δp", changes.quantile(0.5), None);
        add("5.0% Δp", changes.quantile(0.05), None);
        add("0.1% Δp", changes.quantile(0.001), None);
        add("Minimum Δp", changes.quantile(0.0), None);
        add("RMS Δp", rms, Some(square.error / (2.0 * rms)));
        let same = Mean::of(self.positions.iter().map(|p| f64::from(u8::from(p.same_top))));
        add("Same top p", same.value, Some(same.error));
        figures
    }
}

/// As an object: each figure under its name.
impl serde::Serialize for Statistics {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(serde::Serialize)]
        struct Value {
            value: f64,
            #[serde(skip_serializing_if = "Option::is_none")]
            error: Option<f64>,
        }
        let mut map = serializer.serialize_map(None)?;
        for Figure { name, value, error } in self.figures() {
            map.serialize_entry(name, &Value { value, error })?;
        }
        map.end()
    }
}

/// A mean and its standard error.
#[derive(Clone, Copy)]
struct Mean {
    value: f64,
    error: f64,
}

impl Mean {
    fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        let count = values.clone().count() as f64;
        let value = values.clone().sum::<f64>() / count;
        let variance = values.map(|x| (x - value).powi(2)).sum::<f64>() / count;
        Self { value, error: (variance / (count - 1.0)).sqrt() }
    }
}

struct Sorted(Vec<f64>);

impl Sorted {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        Self(values)
    }

    /// Between two values linear, as llama-perplexity's; NaN of nothing.
    fn quantile(&self, share: f64) -> f64 {
        let Some(last) = self.0.len().checked_sub(1) else { return f64::NAN };
        let place = share * last as f64;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0..=last")]
        let below = place as usize;
        let part = place - below as f64;
        (1.0 - part) * self.0[below] + part * self.0[(below + 1).min(last)]
    }
}

/// `ln sum exp`: what a logit must be lowered by to be a log probability.
fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from((logit - max).exp())).sum();
    f64::from(max) + sum.ln()
}

/// `sum p (ln p - ln q)`; differences are taken before anything is rounded, so that equal logits give nearly nothing.
fn divergence(base: &[f32], q: &[f32], [base_sum, q_sum]: [f64; 2]) -> f64 {
    let shift = q_sum - base_sum;
    let terms = base.iter().zip(q).map(|(&b, &q)| {
        let b = f64::from(b);
        let p = f64::from(narrow(b - base_sum).exp());
        if p == 0.0 { 0.0 } else { p * (b - f64::from(q) + shift) }
    });
    terms.sum()
}

#[expect(clippy::cast_possible_truncation, reason = "seven digits of a probability will do")]
fn narrow(x: f64) -> f32 {
    x as f32
}

/// The likeliest token, the first of equals.
pub(super) fn argmax(logits: &[f32]) -> usize {
    crate::reference::ops::argmax(logits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(statistics: &Statistics, name: &str) -> (f64, Option<f64>) {
        let figures = statistics.figures();
        let found = figures.iter().find(|figure| figure.name == name).expect(name);
        (found.value, found.error)
    }

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-6, "{found}, not {expected}");
    }

    #[test]
    fn two_positions_by_hand() {
        let ln = |p: f32| p.ln();
        // Over three tokens: p = 1/2, 1/4, 1/4 against q = 1/4, 1/2, 1/4; then twice the same, shifted by a constant.
        let base = [ln(0.5), ln(0.25), ln(0.25), ln(0.2), ln(0.3), ln(0.5)];
        let q = [ln(0.25), ln(0.5), ln(0.25), ln(0.2) + 3.0, ln(0.3) + 3.0, ln(0.5) + 3.0];
        let mut statistics = Statistics::default();
        statistics.add(&base, &q, 3, &[0, 2]);
        let ln2 = std::f64::consts::LN_2;
        close(statistics.mean_kld(), ln2 / 4.0 / 2.0);
        close(statistics.same_top(), 0.5);
        let (ratio, error) = figure(&statistics, "Mean ln(PPL(Q)/PPL(base))");
        close(ratio, ln2 / 2.0);
        close(error.expect("an error"), ln2 / 2.0);
        // Probabilities of the tokens that follow: 1/2 and 1/2 by base, 1/4 and 1/2 by Q.
        close(figure(&statistics, "Mean PPL(base)").0, 2.0);
        close(figure(&statistics, "Mean PPL(Q)").0, 8f64.sqrt());
        close(figure(&statistics, "Mean Δp").0, -0.125);
        close(figure(&statistics, "RMS Δp").0, (0.0625f64 / 2.0).sqrt());
        close(figure(&statistics, "Maximum KLD").0, ln2 / 4.0);
        close(figure(&statistics, "Median KLD").0, ln2 / 8.0);
    }

    #[test]
    fn equal_predictions_differ_in_nothing() {
        let logits: Vec<f32> = (0..1000).map(|i| ((i * 37 % 101) as f32 - 50.0) / 5.0).collect();
        let mut statistics = Statistics::default();
        statistics.add(&logits, &logits, 500, &[7]);
        assert!(statistics.mean_kld().abs() < 1e-9);
        close(statistics.same_top(), 1.0);
        assert_eq!((statistics.positions(), statistics.predictions()), (2, 1));
        assert!(statistics.is_finite());
    }

    #[test]
    fn what_is_no_number_shows() {
        for odd in [f32::NAN, f32::INFINITY] {
            let mut statistics = Statistics::default();
            statistics.add(&[0.0, 1.0], &[0.0, odd], 2, &[0]);
            assert!(!statistics.is_finite(), "{odd}");
        }
    }
}
