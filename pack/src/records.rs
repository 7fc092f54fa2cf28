//! Records in the order in which a converter makes them, on their way into shards.

use packlight_formats::record::RecordSpec;

use crate::error::PackError;
use crate::layout::ShardPlan;

/// Keeps the place of each record, and sees that what is announced is what comes.
#[derive(Debug)]
pub(crate) struct RecordFeed<'a> {
    records: &'a [RecordSpec],
    /// Shard of each record, and where it starts there.
    places: Vec<(usize, u64)>,
    /// Bytes received of each record.
    received: Vec<u64>,
    /// Records that do not come, because they are there already.
    wanted: Vec<bool>,
}

impl<'a> RecordFeed<'a> {
    /// Of the records that are `wanted`, each of which comes whole, its bytes in order.
    pub(crate) fn new(records: &'a [RecordSpec], shards: &[ShardPlan], wanted: Vec<bool>) -> Self {
        let mut places = vec![(0, 0); records.len()];
        for (i, shard) in shards.iter().enumerate() {
            shard.records.iter().for_each(|&(record, start)| places[record] = (i, start));
        }
        Self { records, places, received: vec![0; records.len()], wanted }
    }

    /// The shard and the offset in it at which the next `length` bytes of a record belong; `None` for a record that is
    /// not wanted.
    pub(crate) fn place(
        &mut self,
        record: usize,
        length: u64,
    ) -> Result<Option<(usize, u64)>, PackError> {
        if !self.wanted[record] {
            return Ok(None);
        }
        let (shard, start) = self.places[record];
        let at = start + self.received[record];
        self.received[record] += length;
        if self.received[record] > self.records[record].stored_bytes() {
            return Err(self.wrong(record));
        }
        Ok(Some((shard, at)))
    }

    /// Every wanted record has come whole.
    pub(crate) fn finish(self) -> Result<(), PackError> {
        let short = |&record: &usize| {
            self.wanted[record] && self.received[record] != self.records[record].stored_bytes()
        };
        match (0..self.records.len()).find(short) {
            Some(record) => Err(self.wrong(record)),
            None => Ok(()),
        }
    }

    fn wrong(&self, record: usize) -> PackError {
        let RecordSpec { name, .. } = &self.records[record];
        let expected = self.records[record].stored_bytes();
        PackError::WrongLength { record: name.clone(), found: self.received[record], expected }
    }
}
