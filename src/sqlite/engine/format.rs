//! What the owner of the tables hands to the engine.

use super::transaction::Tx;

/// What a file holds, as the owner of its tables knows it.
pub(crate) struct Format {
    /// Each brings the schema from the version before it to the next one, the first of which is 1.
    pub(crate) migrations: &'static [&'static str],
    /// Selects the lowest release of this library that may use the file.
    pub(crate) lowest_release: &'static str,
    /// Selects the latest time that any process has seen.
    pub(crate) highest_time: &'static str,
    /// Sets that time to `?1`.
    pub(crate) set_highest_time: &'static str,
    pub(crate) purpose: Purpose,
}

/// What a file is opened for.
pub(crate) struct Purpose {
    /// Is executed first. It may give a new file this purpose.
    pub(crate) begin: &'static str,
    /// Selects whether the file has this purpose.
    pub(crate) is_met: &'static str,
    /// What it is otherwise, and what to do.
    pub(crate) refusal: &'static str,
}

/// Housekeeping of a table's owner, a little with each transaction that writes.
pub(crate) trait Upkeep: Send {
    /// Does as much as `calls` calls pay for. It is not called while a damaged row is searched for.
    fn step(&mut self, tx: &Tx<'_>, calls: u16) -> rusqlite::Result<()>;
}
