//! What a session keeps of the positions it has seen, and how much of it at a time.

use super::Model;

/// The most tokens of one call. A ring has room for them beside its window.
pub const CHUNK: u32 = 256;

/// Positions that a cache has rows for, where a text has at most `context` and a call at most `chunk`.
///
/// A cache that is only ever looked at through a window is a ring: position `p` is in row `p % positions`. All of a
/// call's rows are written before the first is read, and the first of its tokens still looks back a whole window.
pub fn cache_positions(window: Option<u32>, context: u32, chunk: u32) -> u32 {
    window.map_or(context, |window| window.saturating_add(chunk.saturating_sub(1)).min(context))
}

impl Model {
    /// The window that the keys and values of a layer are looked at through: the widest of its own and of those of the
    /// layers that share them.
    pub fn cache_window(&self, layer: usize) -> Option<u32> {
        let readers = self.layers.iter().enumerate().filter_map(|(i, reader)| {
            let attention = reader.mixer.attention()?;
            let reads = i == layer || attention.shares_kv_of() == Some(layer);
            reads.then_some(attention.window)
        });
        // `None` is wider than any window.
        readers.reduce(|a, b| Some(a?.max(b?))).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_has_room_for_a_window_and_a_call() {
        assert_eq!(cache_positions(None, 4096, 256), 4096);
        assert_eq!(cache_positions(Some(512), 4096, 256), 767);
        assert_eq!(cache_positions(Some(512), 600, 256), 600);
        assert_eq!(cache_positions(Some(16), 4096, 1), 16);
        assert_eq!(cache_positions(Some(u32::MAX), 4096, 256), 4096);
    }
}
