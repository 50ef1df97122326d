//! The schema that the store and the inbox share.

/// The schema, version by version. A release that knows an older version may use the tables at the same
/// time, by the statements that it has.
pub(crate) const MIGRATIONS: [&str; 7] = [
    // 1. A key that is done has only `done_until`; one that is claimed, all the others; one that failed
    // or whose lease expired, its attempts. None of these is indexed, so that an update may stay in
    // its page (HOT) and leaves nothing to an index; the spare room is for these.
    "CREATE TABLE {schema}.keys (
        key uuid PRIMARY KEY,
        body uuid NOT NULL,
        done_until timestamptz,
        fence uuid,
        lease_until timestamptz,
        known_until timestamptz,
        attempts integer,
        CHECK (num_nonnulls(done_until, attempts) = 1),
        CHECK (num_nonnulls(known_until, attempts) <> 1),
        CHECK (num_nonnulls(fence, lease_until) <> 1)
    ) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.05)",
    // 2. A body is identified by another digest than in version 1, so those that were stored before cannot
    // be compared, and count as equal. They stay in their rows, because a receiver of version 1 fails on a
    // row without a digest. `old_body` is NULL where the digest is a new one, which takes no room, and its
    // default marks the rows that such a receiver adds meanwhile. A key that it claims again keeps the mark
    // that it had: until that key is forgotten, its body may be reported as another one. No row is rewritten.
    "ALTER TABLE {schema}.keys ADD COLUMN old_body boolean DEFAULT true",
    // 3. The inbox, whether or not it is used. `keys` gets a column that is NULL, which takes no room: no row is
    // rewritten.
    include_str!("inbox.sql"),
    // 4. Functions for many events at once, and one index less to write when an event is handled.
    include_str!("inbox_4.sql"),
    // 5. Two columns that are NULL in every row, and functions beside those that there are.
    include_str!("inbox_5.sql"),
    // 6. Two indexes, a function, and two functions that do the same in another way.
    include_str!("inbox_6.sql"),
    // 7. Functions that do the same in another way.
    include_str!("inbox_7.sql"),
];
