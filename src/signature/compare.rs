//! Compares all candidates, on success as on failure.

#[cfg(test)]
use std::cell::Cell;

#[cfg(test)]
thread_local! {
    pub(super) static COMPARISONS: Cell<usize> = const { Cell::new(0) };
}

/// Whether `is_equal` is true for one. It is called for each.
pub(super) fn any<T>(
    candidates: impl IntoIterator<Item = T>,
    is_equal: impl Fn(T) -> bool,
) -> bool {
    candidates.into_iter().fold(false, |found, candidate| {
        #[cfg(test)]
        COMPARISONS.set(COMPARISONS.get() + 1);
        // `||` would skip the rest after the first match.
        is_equal(candidate) | found
    })
}
