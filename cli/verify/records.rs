//! The records of a bundle, bit for bit, against those that the checkpoint makes.

use packlight_convert::{
    Compensated, Conversion, ConvertError, Piece, PlannedWeight, StreamOptions,
};
use packlight_formats::RecordSpec;
use packlight_formats::quant::float::from_stored_bits;
use packlight_formats::quant::{Order, Storage};
use packlight_runner::bundle::{Bundle, BundleError};

use crate::place::Place;

/// Records that are alike, and what is said of the others.
#[derive(Debug, Default)]
pub(crate) struct Compared {
    pub(crate) records: usize,
    pub(crate) elements: u64,
    pub(crate) differing: u64,
    pub(crate) problems: Vec<String>,
}

/// What was found in one record.
#[derive(Default)]
struct Found {
    /// Bytes compared so far.
    bytes: u64,
    differing: u64,
    /// The first element that differs: its index, as it should be and as it is.
    first: Option<(u64, u32, u32)>,
}

/// Either side of the joint may fail.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Convert(#[from] ConvertError),
    #[error(transparent)]
    Bundle(#[from] BundleError),
}

/// Makes every record again and compares those of which `wanted` says so. A description that differs may name other
/// records: those that the bundle does not have are problems too.
pub(crate) fn compare(
    bundle: &Bundle<Place>,
    conversion: &Conversion<'_>,
    options: StreamOptions,
    compensated: Option<&Compensated>,
    wanted: impl Fn(&Storage) -> bool,
    mut progress: impl FnMut(u64),
) -> anyhow::Result<Compared> {
    let of_weights = conversion
        .weights
        .iter()
        .flat_map(|planned| planned.storage.records().map(move |record| (planned, record)));
    let records: Vec<(&PlannedWeight, &RecordSpec)> = of_weights.collect();
    let mut found: Vec<Found> = records.iter().map(|_| Found::default()).collect();
    let mut missing: Vec<bool> = vec![false; records.len()];
    let asked: Vec<bool> = records.iter().map(|(planned, _)| wanted(&planned.storage)).collect();
    let stream =
        conversion.stream(options, compensated, &asked, |Piece { record, bytes, source_bytes }| {
            progress(source_bytes);
            let (_, spec) = records[record];
            let found = &mut found[record];
            let range = found.bytes..found.bytes + bytes.len() as u64;
            let stored = pollster::block_on(bundle.record(&spec.name, range))?;
            missing[record] = stored.as_ref().is_none_or(|stored| stored.len() != bytes.len());
            found.add(&bytes, stored.as_deref().unwrap_or_default(), spec);
            Ok::<_, Failure>(())
        });
    stream.map_err(|failure| match failure {
        Failure::Convert(error) => anyhow::Error::from(error),
        Failure::Bundle(error) => error.into(),
    })?;
    let mut compared = Compared::default();
    for ((planned, spec), (found, missing)) in records.into_iter().zip(found.iter().zip(missing)) {
        if !wanted(&planned.storage) {
            continue;
        }
        compared.elements += spec.elements();
        if missing {
            compared.differing += spec.elements();
            let problem = format!("`{}` is not there as the checkpoint makes it", spec.name);
            compared.problems.push(problem);
        } else if let Some(problem) = found.problem(planned, spec) {
            compared.differing += found.differing;
            compared.problems.push(problem);
        } else {
            compared.records += 1;
        }
    }
    Ok(compared)
}

impl Found {
    fn add(&mut self, expected: &[u8], found: &[u8], spec: &RecordSpec) {
        let size = usize::try_from(spec.stored.bytes()).unwrap_or(1);
        let elements =
            (self.bytes / size as u64..).zip(expected.chunks(size).zip(found.chunks(size)));
        for (index, (expected, found)) in
            elements.filter(|(_, (expected, found))| expected != found)
        {
            self.differing += 1;
            self.first.get_or_insert((index, number(expected), number(found)));
        }
        self.bytes += expected.len() as u64;
    }

    fn problem(&self, planned: &PlannedWeight, spec: &RecordSpec) -> Option<String> {
        let (index, expected, found) = self.first?;
        let first = place(planned, spec, index, expected, found);
        Some(format!(
            "`{}`: {} of {} elements differ; the first is {first}",
            spec.name,
            self.differing,
            spec.elements()
        ))
    }
}

/// At most four bytes, the lowest first.
fn number(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |number, byte| (number << 8) | u32::from(*byte))
}

/// An element in the terms of its matrix, as it is and as it should be.
fn place(
    planned: &PlannedWeight,
    spec: &RecordSpec,
    index: u64,
    expected: u32,
    found: u32,
) -> String {
    let value = |bits: u32| from_stored_bits(spec.dtype, u16::try_from(bits).unwrap_or(u16::MAX));
    let values = || format!("is {:e}, not {:e}", value(found), value(expected));
    let Storage::Grouped { layout, order, q_weight, .. } = &planned.storage else {
        let columns = planned.weight.columns();
        return match planned.weight.shape.len() {
            1 => format!("value {index}, which {}", values()),
            _ => format!("row {}, column {}, which {}", index / columns, index % columns, values()),
        };
    };
    let (rows, width) = (planned.weight.rows(), spec.elements() / planned.weight.rows().max(1));
    let (row, at) = match order {
        Order::Nk => (index / width.max(1), index % width.max(1)),
        Order::Kn => (index % rows.max(1), index / rows.max(1)),
    };
    if spec.name != q_weight.name {
        let first = at * u64::from(layout.group);
        return format!(
            "row {row}, the scale of the group from column {first}, which {}",
            values()
        );
    }
    let words = u64::from(layout.words_per_group());
    let code = (expected ^ found).trailing_zeros() / layout.bits;
    let column = at / words * u64::from(layout.group)
        + at % words * u64::from(layout.codes_per_word())
        + u64::from(code);
    let code_of = |word: u32| (word >> (code * layout.bits)) & ((1 << layout.bits) - 1);
    format!(
        "row {row}, column {column}, whose code is {}, not {}",
        code_of(found),
        code_of(expected)
    )
}
