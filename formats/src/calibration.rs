//! Where calibration meets: a runner gathers what a matrix sees of a text, a converter chooses codes by it.

/// Columns whose sums are gathered together, so that each value read serves all of them.
const BAND: usize = 16;

/// Second moments of a matrix's inputs, `H = sum x x^T` over all tokens `x`: `e^T H e` is what the error `e` of a row
/// adds to the squared error of the outputs. Up to a factor of two the Hessian of that error, hence the name.
#[derive(Clone, Debug)]
pub struct Hessian {
    columns: usize,
    /// The upper triangle, row after row.
    sums: Vec<f64>,
}

/// Inputs of some tokens, column by column.
#[derive(Debug)]
pub struct Inputs {
    tokens: usize,
    values: Vec<f32>,
}

/// Some rows of a [`Hessian`], so that threads can share the work.
#[derive(Debug)]
pub struct HessianBand<'a> {
    first: usize,
    columns: usize,
    sums: &'a mut [f64],
}

impl Inputs {
    /// From `x`, `[tokens, columns]`.
    pub fn new(x: &[f32], columns: usize) -> Self {
        let values = (0..columns).flat_map(|c| x.iter().skip(c).step_by(columns).copied());
        Self { tokens: x.len() / columns.max(1), values: values.collect() }
    }

    fn column(&self, c: usize) -> &[f32] {
        &self.values[c * self.tokens..][..self.tokens]
    }
}

impl Hessian {
    /// Before any input.
    pub fn new(columns: usize) -> Self {
        Self { columns, sums: vec![0.0; start(columns, columns)] }
    }

    /// Inputs of the matrix.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// `H[i, j]`.
    pub fn get(&self, i: usize, j: usize) -> f64 {
        let (i, j) = (i.min(j), i.max(j));
        self.sums[start(self.columns, i) + j - i]
    }

    /// All rows, in bands to which inputs can be added independently of each other.
    pub fn bands(&mut self) -> Vec<HessianBand<'_>> {
        let columns = self.columns;
        let mut rest = self.sums.as_mut_slice();
        let mut bands = Vec::new();
        for first in (0..columns).step_by(BAND) {
            let last = (first + BAND).min(columns);
            let (sums, after) = rest.split_at_mut(start(columns, last) - start(columns, first));
            rest = after;
            bands.push(HessianBand { first, columns, sums });
        }
        bands
    }
}

impl HessianBand<'_> {
    /// Adds some tokens. Their sum is made in f32, whose rounding is far below the damping of any use of it; that over
    /// all calls in f64.
    pub fn add(&mut self, inputs: &Inputs) {
        let last = (self.first + BAND).min(self.columns);
        let base = start(self.columns, self.first);
        for j in self.first..self.columns {
            let right = inputs.column(j);
            for i in self.first..last.min(j + 1) {
                let at = start(self.columns, i) + j - i - base;
                self.sums[at] += f64::from(dot(inputs.column(i), right));
            }
        }
    }
}

/// Where row `i` of an upper triangle of that many columns starts.
pub(crate) fn start(columns: usize, i: usize) -> usize {
    i * columns - i * i.saturating_sub(1) / 2
}

/// In eight running sums, the same on every machine.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let mut sums = [0.0f32; 8];
    for (a, b) in a.iter().zip(b) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_all_tokens() {
        let (columns, tokens) = (37, 21);
        let x: Vec<f32> = (0..columns * tokens).map(|i| (i * i % 17) as f32 - 8.0).collect();
        let mut hessian = Hessian::new(columns);
        for x in x.chunks(5 * columns) {
            let inputs = Inputs::new(x, columns);
            hessian.bands().iter_mut().for_each(|band| band.add(&inputs));
        }
        for i in 0..columns {
            for j in 0..columns {
                let expected: f32 = x.chunks(columns).map(|x| x[i] * x[j]).sum();
                assert!((hessian.get(i, j) - f64::from(expected)).abs() < 1e-3, "{i}, {j}");
            }
        }
    }
}
