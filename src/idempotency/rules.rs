//! What deduplication is asked to do where the default is not enough.

/// How duplicates, and failures of the store, are answered.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rules {
    pub(crate) handle_without_store: bool,
    pub(crate) reject_changed_bodies: bool,
    pub(crate) replay_guard: bool,
}
