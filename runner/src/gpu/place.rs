//! Where a plan's weights go: device limits become buffers, and a weight too large for one binding is cut into rows.
//!
//! Pure arithmetic, so that the limits of any device can be tested on none.

use std::collections::{BTreeMap, BTreeSet};

use packlight_formats::quant::{Grouped, Order, Storage};
use packlight_formats::{Dtype, RecordSpec};

use super::caps::Caps;
use super::error::{CapacityError, PlanError};
use crate::executor::Capacity;
use crate::plan::{Cache, Plan, PlanWeight, Rows};

/// The most a weight buffer gets, even where the device allows more: one huge allocation fails where several succeed.
const BUFFER_BYTES: u64 = 256 << 20;

/// A run of bytes in one of the weight buffers, bindable as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Index into [`Placement::buffers`].
    pub buffer: usize,
    pub offset: u64,
    /// A multiple of four.
    pub bytes: u64,
}

/// Consecutive rows of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub first_row: u32,
    pub rows: u32,
    /// `[rows, words of a row]`, or the transpose.
    pub codes: Region,
    /// `[rows, groups of a row]`, or the transpose; values that are not quantised have none.
    pub scales: Option<Region>,
}

/// How the words of a matrix are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Words {
    /// Codes of scaled groups.
    Grouped { layout: Grouped, order: Order, scales: Floats },
    /// Values as they are: one in f32, two of a shorter type.
    Plain { values: Floats },
}

/// The type of scales and of values that are not quantised, on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Floats {
    Float16,
    Bfloat16,
    /// Scales may be widened to it while they are uploaded.
    Float32,
}

impl Floats {
    /// Those of a record.
    fn stored(record: Dtype) -> Self {
        match record {
            Dtype::Float16 => Self::Float16,
            Dtype::Float32 => Self::Float32,
            Dtype::Bfloat16 | Dtype::Uint32 => Self::Bfloat16,
        }
    }

    /// Bytes of each.
    pub fn bytes(self) -> u64 {
        match self {
            Self::Float16 | Self::Bfloat16 => 2,
            Self::Float32 => 4,
        }
    }
}

/// Where a weight is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placed {
    Matrix {
        words: Words,
        pieces: Vec<Piece>,
    },
    /// f32 values, whatever the record's type.
    Vector(Region),
    /// Not on the device: rows are given with the tokens.
    Host,
}

/// Where everything is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// In the order of [`Plan::weights`].
    pub weights: Vec<Placed>,
    /// Bytes of each weight buffer.
    pub buffers: Vec<u64>,
}

impl Placement {
    /// Places the weights of a plan.
    pub fn new(plan: &Plan, caps: &Caps) -> Result<Self, PlanError> {
        let mut placer = Placer { caps, buffers: Vec::new() };
        let mut weights: Vec<Placed> = Vec::with_capacity(plan.weights.len());
        let mut seen = BTreeMap::new();
        let on_host: BTreeSet<usize> = plan.host_tables().map(|(table, _)| table.0).collect();
        for (i, weight) in plan.weights.iter().enumerate() {
            // A weight that two steps name is stored once.
            let placed = match seen.insert(&weight.name, i) {
                Some(earlier) => weights[earlier].clone(),
                None if on_host.contains(&i) => Placed::Host,
                None => placer.weight(weight)?,
            };
            weights.push(placed);
        }
        Ok(Self { weights, buffers: placer.buffers })
    }
}

struct Placer<'a> {
    caps: &'a Caps,
    buffers: Vec<u64>,
}

impl Placer<'_> {
    fn weight(&mut self, weight: &PlanWeight) -> Result<Placed, PlanError> {
        match &weight.storage {
            Storage::Grouped { layout, order, q_scale, .. } => {
                self.grouped(weight, *layout, *order, q_scale.stored)
            }
            Storage::Plain(record) if weight.columns == 1 => self.vector(weight, record),
            Storage::Plain(record) => self.plain(weight, record),
        }
    }

    fn grouped(
        &mut self,
        weight: &PlanWeight,
        layout: Grouped,
        order: Order,
        stored: Dtype,
    ) -> Result<Placed, PlanError> {
        let scales = match stored {
            // Transposed halves of an odd number of rows cannot be cut at whole words.
            _ if order == Order::Kn && !weight.rows.is_multiple_of(2) => Floats::Float32,
            stored => Floats::stored(stored),
        };
        let columns = u64::from(weight.columns);
        let code_bytes = layout.words_per_row(columns) * 4;
        let scale_bytes = layout.groups_per_row(columns) * scales.bytes();
        self.matrix(weight, Words::Grouped { layout, order, scales }, code_bytes, scale_bytes)
    }

    fn plain(&mut self, weight: &PlanWeight, record: &RecordSpec) -> Result<Placed, PlanError> {
        let values = Floats::stored(record.stored);
        self.matrix(weight, Words::Plain { values }, values.bytes() * u64::from(weight.columns), 0)
    }

    fn matrix(
        &mut self,
        weight: &PlanWeight,
        words: Words,
        code_bytes: u64,
        scale_bytes: u64,
    ) -> Result<Placed, PlanError> {
        let limit = self.limit();
        let mut pieces = Vec::new();
        for (first_row, rows) in cut_rows(weight.rows, code_bytes.max(scale_bytes), limit)
            .ok_or_else(|| {
                let bytes = code_bytes.saturating_mul(2);
                PlanError::Row { weight: weight.name.clone(), bytes, limit }
            })?
        {
            // Two-byte values may end within a word.
            let codes = self.region((u64::from(rows) * code_bytes).next_multiple_of(4));
            let scales = (u64::from(rows) * scale_bytes).next_multiple_of(4);
            let scales = (scales > 0).then(|| self.region(scales));
            pieces.push(Piece { first_row, rows, codes, scales });
        }
        Ok(Placed::Matrix { words, pieces })
    }

    fn vector(&mut self, weight: &PlanWeight, record: &RecordSpec) -> Result<Placed, PlanError> {
        let wrong = |why: String| Err(PlanError::Weight { weight: weight.name.clone(), why });
        if record.dtype == Dtype::Uint32 {
            return wrong("a vector cannot be uint32".into());
        }
        let bytes = u64::from(weight.rows) * 4;
        if bytes > self.limit() {
            return wrong(format!("{bytes} bytes are larger than a binding"));
        }
        Ok(Placed::Vector(self.region(bytes)))
    }

    fn limit(&self) -> u64 {
        self.caps.binding_bytes.min(self.buffer_limit()) / 4 * 4
    }

    fn buffer_limit(&self) -> u64 {
        self.caps.buffer_bytes.min(BUFFER_BYTES)
    }

    /// The next free bytes, in a new buffer where the last one has no room.
    fn region(&mut self, bytes: u64) -> Region {
        let limit = self.buffer_limit();
        let alignment = u64::from(self.caps.offset_alignment);
        let offset = self.buffers.last().map(|used| used.next_multiple_of(alignment));
        match (offset, self.buffers.last_mut()) {
            (Some(offset), Some(used)) if offset + bytes <= limit => {
                *used = offset + bytes;
                Region { buffer: self.buffers.len() - 1, offset, bytes }
            }
            _ => {
                self.buffers.push(bytes);
                Region { buffer: self.buffers.len() - 1, offset: 0, bytes }
            }
        }
    }
}

/// Cuts rows into `(first, count)` of at most `limit` bytes each; `None` where even two rows are larger.
///
/// All but the last piece have an even number of rows, so that two-byte scales split at a whole word.
fn cut_rows(rows: u32, row_bytes: u64, limit: u64) -> Option<Vec<(u32, u32)>> {
    let whole = u64::from(rows).saturating_mul(row_bytes) <= limit;
    let fit = limit / row_bytes.max(1) / 2 * 2;
    let most = if whole { rows } else { u32::try_from(fit).unwrap_or(u32::MAX - 1) };
    if most == 0 {
        return None;
    }
    let firsts = (0..rows).step_by(most as usize);
    Some(firsts.map(|first| (first, most.min(rows - first))).collect())
}

/// Rows of `width` f32 values that a binding holds.
fn bindable_rows(width: u64, caps: &Caps) -> u32 {
    // Sizes are rounded up to sixteen bytes.
    let limit = caps.binding_bytes.min(caps.buffer_bytes) / 16 * 16;
    u32::try_from(limit / (4 * width.max(1))).unwrap_or(u32::MAX)
}

/// The largest sizes whose buffers the device can bind; other limits (memory, training) are not its matter.
pub fn largest_capacity(plan: &Plan, caps: &Caps) -> Capacity {
    let rows = |width: u64| bindable_rows(width, caps);
    // A ring does not grow with the context.
    let caches = plan.caches.iter().filter(|cache| cache.window.is_none()).map(Cache::width);
    let slots = |is_output: bool| {
        let slots = plan.slots.iter().filter(move |s| (s.rows == Rows::Outputs) == is_output);
        slots.map(|slot| u64::from(slot.rows.count(1, 1)) * u64::from(slot.width))
    };
    // Angles are a pair for half of the width that is turned.
    let ropes = plan.ropes.iter().map(|rope| u64::from(rope.width));
    Capacity {
        context: caches.map(rows).min().unwrap_or(u32::MAX),
        chunk: slots(false).chain(ropes).map(rows).min().unwrap_or(u32::MAX),
        outputs: slots(true).map(rows).min().unwrap_or(u32::MAX),
    }
}

/// Whether buffers of this capacity can be bound.
pub(super) fn check_capacity(
    plan: &Plan,
    caps: &Caps,
    capacity: Capacity,
) -> Result<(), CapacityError> {
    let Capacity { context, chunk, outputs } = capacity;
    let limit = caps.binding_bytes.min(caps.buffer_bytes);
    let fits = largest_capacity(plan, caps);
    let caches = plan.caches.iter().map(|cache| (cache.positions(capacity), cache.width()));
    let histories = plan.histories.iter().map(|h| (h.positions(capacity), u64::from(h.width)));
    let too_long = caches.chain(histories).filter_map(|(positions, width)| {
        let fits = bindable_rows(width, caps);
        (positions > fits).then_some(fits)
    });
    if context == 0 || chunk == 0 || outputs == 0 {
        Err(CapacityError::Empty { context, chunk, outputs })
    } else if let Some(fits) = too_long.min() {
        Err(CapacityError::Context { context, fits, limit })
    } else if chunk > fits.chunk {
        Err(CapacityError::Chunk { chunk, fits: fits.chunk, limit })
    } else if outputs > fits.outputs {
        Err(CapacityError::Outputs { outputs, fits: fits.outputs, limit })
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::SlotId;

    const MIB: u64 = 1 << 20;

    fn plan(weights: &[(&str, u32, u32)]) -> Plan {
        let layout = Grouped::mlc(4, 32);
        let weights = weights.iter().map(|&(name, rows, columns)| {
            let (height, width) = (u64::from(rows), u64::from(columns));
            PlanWeight {
                name: name.into(),
                rows,
                columns,
                storage: Storage::Grouped {
                    layout,
                    order: Order::Nk,
                    q_weight: RecordSpec::new(
                        format!("{name}.q_weight"),
                        Dtype::Uint32,
                        [height, layout.words_per_row(width)],
                    ),
                    q_scale: RecordSpec::new(
                        format!("{name}.q_scale"),
                        Dtype::Float16,
                        [height, layout.groups_per_row(width)],
                    ),
                },
            }
        });
        Plan {
            slots: Vec::new(),
            weights: weights.collect(),
            caches: Vec::new(),
            histories: Vec::new(),
            ropes: Vec::new(),
            steps: Vec::new(),
            logits: SlotId(0),
        }
    }

    fn regions_of(piece: &Piece) -> impl Iterator<Item = Region> {
        std::iter::once(piece.codes).chain(piece.scales)
    }

    #[test]
    fn pieces_cover_every_row_within_the_limits() {
        // Rows of 128 KiB just below, at and above the limit, an odd row of 68 bytes, and a table of 1,120 MiB.
        let shapes =
            [(1023, 262_144), (1024, 262_144), (1025, 262_144), (4_000_001, 130), (262_144, 8960)];
        for (rows, columns) in shapes {
            let caps = Caps::floor();
            let placement = Placement::new(&plan(&[("w", rows, columns)]), &caps).expect("places");
            let Placed::Matrix { words: Words::Grouped { layout, .. }, pieces } =
                &placement.weights[0]
            else {
                panic!("grouped")
            };
            let whole = layout.words_per_row(columns.into()) * 4 * u64::from(rows) <= 128 * MIB;
            assert_eq!(pieces.len() == 1, whole, "{rows} x {columns}");
            let mut next = 0;
            for piece in pieces {
                assert_eq!(piece.first_row, next);
                next += piece.rows;
                assert!(piece.first_row.is_multiple_of(2));
                for region in regions_of(piece) {
                    assert!(region.offset.is_multiple_of(256) && region.bytes.is_multiple_of(4));
                    assert!(region.bytes <= caps.binding_bytes);
                    assert!(region.offset + region.bytes <= placement.buffers[region.buffer]);
                }
            }
            assert_eq!(next, rows);
            assert!(placement.buffers.iter().all(|&bytes| bytes <= caps.buffer_bytes));
        }
    }

    #[test]
    fn regions_do_not_overlap_and_shared_weights_are_stored_once() {
        let weights = [("a", 3, 33), ("b", 1, 20), ("a", 3, 33)];
        let placement = Placement::new(&plan(&weights), &Caps::floor()).expect("places");
        assert_eq!(placement.weights[0], placement.weights[2]);
        let mut regions = Vec::new();
        for placed in &placement.weights[..2] {
            let Placed::Matrix { pieces, .. } = placed else { panic!("a matrix") };
            regions.extend(pieces.iter().flat_map(regions_of));
        }
        for pair in regions.windows(2) {
            assert!(pair[0].offset + pair[0].bytes <= pair[1].offset);
        }
        assert_eq!(placement.buffers.len(), 1);
    }

    #[test]
    fn a_row_larger_than_a_binding_is_an_error() {
        let caps = Caps { binding_bytes: 1024, ..Caps::floor() };
        let error = Placement::new(&plan(&[("w", 3, 1056)]), &caps).expect_err("too wide");
        assert_eq!(error, PlanError::Row { weight: "w".into(), bytes: 1056, limit: 1024 });
    }

    #[test]
    fn a_capacity_that_cannot_be_bound_says_what_fits() {
        let mut plan = plan(&[]);
        plan.caches.push(Cache { kv_heads: 8, head_dim: 128, window: None });
        let error = check_capacity(
            &plan,
            &Caps::floor(),
            Capacity { context: 40_000, chunk: 1, outputs: 1 },
        );
        let limit = 128 * MIB;
        assert_eq!(error, Err(CapacityError::Context { context: 40_000, fits: 32_768, limit }));
        // A ring takes its window and a call, however long the context.
        plan.caches[0].window = Some(4096);
        let capacity = |chunk| Capacity { context: 1 << 20, chunk, outputs: 1 };
        assert_eq!(check_capacity(&plan, &Caps::floor(), capacity(256)), Ok(()));
        let error = check_capacity(&plan, &Caps::floor(), capacity(30_000));
        assert!(matches!(error, Err(CapacityError::Context { fits: 32_768, .. })), "{error:?}");
    }
}
