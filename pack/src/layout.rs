//! Which record goes into which shard: MLC's rule, decided before anything is written.

use packlight_formats::record::RecordSpec;

/// MLC's `shard_cap_mb=32`.
pub const DEFAULT_SHARD_BYTES: u64 = 32 << 20;

/// One shard: records one after another without padding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardPlan {
    /// Indices of the records and where each starts.
    pub records: Vec<(usize, u64)>,
    /// Size of the shard.
    pub bytes: u64,
}

impl ShardPlan {
    fn push(&mut self, record: usize, bytes: u64) {
        self.records.push((record, self.bytes));
        self.bytes += bytes;
    }
}

/// Divides records, in emission order, over shards (tvm/contrib/tvmjs.py::TensorCacheShardingManager).
///
/// A record is never split. One that would fill the pending shard to the cap closes it, unless the record is itself at
/// least half the cap: then it becomes a shard of its own at once, numbered before the pending one.
pub fn plan_shards(records: &[RecordSpec], cap: u64) -> Vec<ShardPlan> {
    let mut shards = Vec::new();
    let mut pending = ShardPlan::default();
    for (i, record) in records.iter().enumerate() {
        let bytes = record.stored_bytes();
        if pending.bytes.saturating_add(bytes) >= cap {
            if bytes.saturating_mul(2) >= cap {
                shards.push(ShardPlan { records: vec![(i, 0)], bytes });
                continue;
            }
            shards.push(std::mem::take(&mut pending));
        }
        pending.push(i, bytes);
    }
    if !pending.records.is_empty() {
        shards.push(pending);
    }
    shards
}

#[cfg(test)]
mod tests {
    use super::*;
    use packlight_formats::Dtype;

    fn shards(sizes: &[u64], cap: u64) -> Vec<(Vec<usize>, u64)> {
        let specs: Vec<RecordSpec> =
            sizes.iter().map(|&n| RecordSpec::new("r", Dtype::Float16, [n / 2])).collect();
        let plan = plan_shards(&specs, cap);
        plan.into_iter()
            .map(|s| (s.records.into_iter().map(|(i, _)| i).collect(), s.bytes))
            .collect()
    }

    #[test]
    fn a_large_record_overtakes_the_pending_shard() {
        assert_eq!(shards(&[10, 60, 20], 100), [(vec![0, 1, 2], 90)]);
        assert_eq!(shards(&[50, 60, 20], 100), [(vec![1], 60), (vec![0, 2], 70)]);
        assert_eq!(shards(&[80, 30, 40], 100), [(vec![0], 80), (vec![1, 2], 70)]);
    }

    #[test]
    fn reaching_the_cap_exactly_closes_a_shard() {
        assert_eq!(shards(&[60, 40], 100), [(vec![0], 60), (vec![1], 40)]);
        assert_eq!(shards(&[50, 50], 100), [(vec![1], 50), (vec![0], 50)]);
        assert_eq!(shards(&[200], 100), [(vec![0], 200)]);
    }
}
