//! How much there is to do in a call, which the live lengths decide.

use std::ops::RangeInclusive;

use crate::executor::Live;
use crate::plan::Rows;

/// How many workgroups a call takes: `groups` for every `tile` rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    pub rows: Rows,
    pub tile: u32,
    pub groups: u32,
    /// The live row counts for which the call is made at all.
    pub applies: RangeInclusive<u32>,
    /// Whether as many workgroups more take a part of the positions each.
    pub spread: Option<Spread>,
}

/// How the positions that a token sees are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// Positions of a part at least.
    pub share: u32,
    /// The most parts.
    pub most: u32,
    /// No more positions than these are seen.
    pub window: Option<u32>,
}

impl Spread {
    /// Parts of what the last token of a call sees, as attend_split.wgsl has it.
    fn shares(self, live: Live) -> u32 {
        let seen = (live.past + live.tokens).min(self.window.unwrap_or(u32::MAX));
        seen.div_ceil(self.share).clamp(1, self.most)
    }
}

impl Work {
    pub(super) fn per_row(rows: Rows, groups: u32) -> Self {
        Self { rows, tile: 1, groups, applies: 1..=u32::MAX, spread: None }
    }

    /// The workgroups of a call with these lengths; `None` where it has nothing to do.
    pub fn workgroups(&self, live: Live) -> Option<u64> {
        let rows = self.rows.count(live.tokens, live.outputs);
        let applies = self.applies.contains(&rows);
        let shares = self.spread.map_or(1, |spread| spread.shares(live));
        let tiles = || u64::from(rows.div_ceil(self.tile)) * u64::from(self.groups);
        applies.then(|| tiles() * u64::from(shares))
    }
}
