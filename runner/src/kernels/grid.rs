//! A row of workgroups becomes the two dimensions of a dispatch, each at most 65,535 long.

/// Why a dispatch has no grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GridError {
    #[error("a dispatch of no workgroups")]
    Empty,
    #[error("a dispatch of {groups} workgroups, but two dimensions hold only {limit}")]
    TooMany { groups: u64, limit: u64 },
}

/// Folds `groups` workgroups into `[x, y]` with as few to spare as possible, fewer than `y`.
///
/// Workgroup `(x, y)` is number `y * size.x + x` of the row (`unit` in prelude.wgsl); those past the end do nothing.
pub fn fold(groups: u64, per_dimension: u32) -> Result<[u32; 2], GridError> {
    let per_dimension = u64::from(per_dimension);
    if groups == 0 {
        return Err(GridError::Empty);
    }
    let y = groups.div_ceil(per_dimension);
    let x = groups.div_ceil(y);
    let limit = per_dimension * per_dimension;
    match (u32::try_from(x), u32::try_from(y)) {
        (Ok(x), Ok(y)) if u64::from(y) <= per_dimension => Ok([x, y]),
        _ => Err(GridError::TooMany { groups, limit }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u32 = 65_535;

    /// Row 16 of the behaviours, with its other half below.
    #[test]
    fn every_unit_is_visited_once() {
        for groups in [1, 2, 65_534, 65_535, 65_536, 65_537, 70_000, 131_071, 10_000_000] {
            let [x, y] = fold(groups, LIMIT).expect("fits");
            assert!(x <= LIMIT && y <= LIMIT, "{groups}: {x} x {y}");
            let (x, y) = (u64::from(x), u64::from(y));
            // `y * x + x` counts up without gaps, so covering is a matter of the total.
            assert!(x * y >= groups && x * y - groups < y, "{groups}: {x} x {y}");
            if groups <= u64::from(LIMIT) {
                assert_eq!((x, y), (groups, 1));
            }
        }
    }

    #[test]
    fn nothing_and_too_much_are_told_apart() {
        assert_eq!(fold(0, LIMIT), Err(GridError::Empty));
        let limit = u64::from(LIMIT) * u64::from(LIMIT);
        assert_eq!(fold(limit, LIMIT), Ok([LIMIT, LIMIT]));
        assert_eq!(fold(limit + 1, LIMIT), Err(GridError::TooMany { groups: limit + 1, limit }));
    }
}
