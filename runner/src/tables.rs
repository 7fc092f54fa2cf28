//! Tables of which a token needs one row: too large for a device, and for memory. They stay where the bundle is, and
//! their rows are read by range when a token asks for them.

use std::ops::Range;
use std::sync::Arc;

use packlight_formats::quant::Storage;

use crate::bundle::Parts;
use crate::packed;
use crate::plan::{Plan, PlanWeight};
use crate::source::{AnySource, SourceError};

/// The tables of a plan ([`Plan::host_tables`]) in a bundle. Their bytes are not verified here: whoever loads the bundle
/// has seen all of them go by.
pub struct HostTables {
    source: Arc<dyn AnySource>,
    tables: Vec<Table>,
}

struct Table {
    columns: usize,
    storage: Storage,
    /// Of each record of the storage.
    places: Vec<Place>,
}

/// A record `[rows, ...]` in a shard.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The files that hold the shard.
    pub(crate) parts: Parts,
    pub(crate) bytes: Range<u64>,
}

impl HostTables {
    /// The tables of a plan; `find` says where a record is.
    pub(crate) fn of<E>(
        plan: &Plan,
        source: Arc<dyn AnySource>,
        find: impl Fn(&str) -> Result<Place, E>,
    ) -> Result<Self, E> {
        let table = |weight: &PlanWeight| {
            let rows = u64::from(weight.rows);
            let first_row = |place: Place| {
                let Range { start, end } = place.bytes;
                Place { bytes: start..start + (end - start) / rows, ..place }
            };
            let records = weight.storage.records();
            let places = records.map(|record| find(&record.name).map(first_row));
            Ok(Table {
                columns: weight.columns as usize,
                storage: weight.storage.clone(),
                places: places.collect::<Result<_, E>>()?,
            })
        };
        let tables = plan.host_tables().map(|(id, _)| table(plan.weight(id)));
        Ok(Self { source, tables: tables.collect::<Result<_, E>>()? })
    }

    /// The rows of some tokens, `[T, columns]` of each table.
    pub async fn rows(&self, tokens: &[u32]) -> Result<Vec<Vec<f32>>, SourceError> {
        let mut all = Vec::with_capacity(self.tables.len());
        for table in &self.tables {
            let mut rows = vec![0.0; tokens.len() * table.columns];
            for (t, &token) in tokens.iter().enumerate() {
                let start = t * table.columns;
                if let Some(earlier) = tokens[..t].iter().position(|&other| other == token) {
                    let earlier = earlier * table.columns;
                    rows.copy_within(earlier..earlier + table.columns, start);
                } else {
                    self.row(table, token, &mut rows[start..start + table.columns]).await?;
                }
            }
            all.push(rows);
        }
        Ok(all)
    }

    async fn row(&self, table: &Table, token: u32, out: &mut [f32]) -> Result<(), SourceError> {
        let mut records = Vec::with_capacity(table.places.len());
        for Place { parts, bytes } in &table.places {
            let length = bytes.end - bytes.start;
            let start = bytes.start + u64::from(token) * length;
            let mut record = Vec::new();
            for (file, range) in parts.cut(start..start + length) {
                record.extend(self.source.any_range(file, range).await?);
            }
            records.push(record);
        }
        packed::decode_row(&table.storage, &records, out);
        Ok(())
    }
}

impl std::fmt::Debug for HostTables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let places = self.tables.iter().map(|table| &table.places);
        f.debug_list().entries(places).finish()
    }
}

#[cfg(test)]
impl Default for HostTables {
    /// Those of a plan without any.
    fn default() -> Self {
        Self { source: Arc::new(crate::source::Folder::new("")), tables: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use packlight_formats::quant::{Grouped, Order};
    use packlight_formats::{Dtype, RecordSpec};
    use pollster::block_on;

    use super::*;
    use crate::executor::WeightSink as _;
    use crate::packed::PackedWeights;
    use crate::plan::{Op, Rows, Slot, SlotId, Step, WeightId};
    use crate::source::Source;

    /// One file in memory that remembers what was read of it.
    struct Memory {
        bytes: Vec<u8>,
        read: Mutex<Vec<Range<u64>>>,
    }

    impl Source for Memory {
        async fn file(&self, _path: &str) -> Result<Option<Vec<u8>>, SourceError> {
            Ok(None)
        }

        async fn range(&self, path: &str, range: Range<u64>) -> Result<Vec<u8>, SourceError> {
            self.read.lock().expect("whole").push(range.clone());
            let index = |at: u64| usize::try_from(at).expect("small");
            let bytes = self.bytes.get(index(range.start)..index(range.end));
            let (path, found, expected) = (path.into(), self.bytes.len() as u64, range.end);
            bytes.map(<[u8]>::to_vec).ok_or(SourceError::Truncated { path, found, expected })
        }
    }

    /// A plan that looks rows of 40 values up in a table on the host.
    fn plan() -> Plan {
        let layout = Grouped::mlc(4, 32);
        let q_weight = RecordSpec::new("t.q_weight", Dtype::Uint32, [7, 8]);
        let q_scale = RecordSpec::new("t.q_scale", Dtype::Float16, [7, 2]);
        let storage = Storage::Grouped { layout, order: Order::Nk, q_weight, q_scale };
        let table = PlanWeight { name: "t.weight".into(), rows: 7, columns: 40, storage };
        let op = Op::HostGather { table: WeightId(0), out: SlotId(0) };
        Plan {
            slots: vec![Slot { name: "rows", width: 40, rows: Rows::Tokens }],
            weights: vec![table],
            caches: Vec::new(),
            histories: Vec::new(),
            ropes: Vec::new(),
            steps: vec![Step { place: "test".into(), op }],
            logits: SlotId(0),
        }
    }

    /// Scales first, to show that each record is found where it is.
    fn place(record: &str) -> Result<Place, String> {
        let bytes = match record {
            "t.q_scale" => 100..128,
            "t.q_weight" => 128..352,
            other => return Err(other.into()),
        };
        Ok(Place { parts: Parts::whole("shard"), bytes })
    }

    #[test]
    fn rows_are_read_by_range_and_nothing_else_is() {
        let bytes: Vec<u8> = (0..352u32).map(|i| (i * 37 % 59) as u8).collect();
        let plan = plan();
        let mut packed = PackedWeights::of(&plan.weights);
        for record in plan.weights[0].storage.records() {
            let Range { start, end } = place(&record.name).expect("known").bytes;
            let bytes = &bytes[usize::try_from(start).expect("small")..]
                [..usize::try_from(end - start).expect("small")];
            packed.write(record, 0, bytes).expect("is taken");
        }
        let source = Arc::new(Memory { bytes, read: Mutex::default() });
        let tables = HostTables::of(&plan, Arc::<Memory>::clone(&source), place).expect("found");
        let found = block_on(tables.rows(&[6, 0, 6])).expect("reads");
        let mut expected = vec![0.0; 120];
        for (token, row) in [6, 0, 6].into_iter().zip(expected.chunks_mut(40)) {
            packed.row(&plan.weights[0], token, row);
        }
        assert_eq!(found, [expected]);
        // Of each token once: 32 bytes of codes, 4 of scales.
        assert_eq!(*source.read.lock().expect("whole"), [320..352, 124..128, 128..160, 100..104]);
    }

    #[test]
    fn a_table_that_is_cut_off_is_an_error() {
        let source = Arc::new(Memory { bytes: vec![0; 351], read: Mutex::default() });
        let tables = HostTables::of(&plan(), source, place).expect("found");
        assert!(block_on(tables.rows(&[5])).is_ok());
        let error = block_on(tables.rows(&[6])).expect_err("cut off");
        assert!(matches!(error, SourceError::Truncated { found: 351, expected: 352, .. }));
        let error = HostTables::of(
            &plan(),
            Arc::new(Memory { bytes: Vec::new(), read: Mutex::default() }),
            |record| Err::<Place, _>(record.to_owned()),
        );
        assert_eq!(error.err().as_deref(), Some("t.q_weight"));
    }
}
