//! The schema that the store and the inbox share.

use super::engine::{Migration, Migrations, Table};

/// The schema, version by version. Until 0.1.0 is published, every change goes into version 1. After that, a version adds
/// what its release needs, and gives a function that takes or returns something else another name, so that processes of
/// both releases can run at the same time.
pub(crate) const MIGRATIONS: Migrations = &[Migration {
    lowest_release: "0.1.0",
    sql: concat!(
        include_str!("schema.sql"),
        include_str!("functions/accept.sql"),
        include_str!("functions/lanes.sql"),
        include_str!("functions/claim.sql"),
        include_str!("functions/settle.sql"),
        include_str!("functions/change.sql"),
        include_str!("functions/forget.sql"),
        include_str!("functions/list.sql"),
        include_str!("functions/blocked.sql"),
        include_str!("functions/count.sql"),
        include_str!("functions/measure.sql"),
        include_str!("functions/purge.sql"),
    ),
}];

/// What a queue uses: all tables.
pub(crate) const TABLES: &[Table] = &[
    ("keys", "body"),
    ("kinds", "note"),
    ("events", "kind"),
    ("head", "due"),
    ("clock", "seen"),
    ("given_up", "at"),
    ("wait", "due"),
    ("aside", "due"),
    ("dead", "at"),
    ("ended", "at"),
    ("failures", "at"),
    ("actions", "at"),
    ("counts", "number"),
    ("handlers", "seen"),
    ("changed", "event"),
];

/// What a store uses.
pub(crate) const TABLES_OF_KEYS: &[Table] = &[TABLES[0]];
