// Which positions queries see, where these are in a ring, and how many workgroups share them.

// The first position that a query sees whose own is the last before `end`; a window of 0 hides none.
fn first_seen(end: u32, window: u32) -> u32 {
    if window > 0u {
        return end - min(end, window);
    }
    return 0u;
}

// The row of the `i`th position after that of `base_row`. No more are seen than the ring has, so it wraps once at most.
fn row_at(base_row: u32, i: u32, positions: u32) -> u32 {
    let row = base_row + i;
    return select(row, row - positions, row >= positions);
}

// Workgroups that share what the last query of a call sees. `Spread` in kernels/work.rs has the same number.
fn shares_of(window: u32, share: u32, most_shares: u32) -> u32 {
    let end = live.past + live.tokens;
    return clamp((end - first_seen(end, window) + share - 1u) / share, 1u, most_shares);
}
