//! The schema of a file: the store's table of keys, and the inbox's tables.

use std::path::Path;

use super::keys::rows::Purge;
use crate::sqlite::engine::{Engine, Format, Machine};
use crate::store::engine::Error;

/// Opens a file with all tables, for a store, an inbox or both.
pub(crate) fn open(path: &Path, machine: Machine, checkpoint_every: i32) -> Result<Engine, Error> {
    let upkeep = vec![Box::<Purge>::default() as _];
    Engine::open(path, &FORMAT, upkeep, machine, checkpoint_every)
}

/// The file's schema, version by version, whatever features are on. A release that knows an older version may use
/// the file at the same time, by the statements that it has.
pub(crate) const FORMAT: Format = Format {
    migrations: &[
        // 1. Times are milliseconds since 1970, and the last ones of what they limit. A row does not
        // change its size when its key is done, so that it is changed in place.
        "CREATE TABLE keys (
            id          INTEGER PRIMARY KEY,
            key         BLOB    NOT NULL UNIQUE,
            body        BLOB    NOT NULL,
            fence       BLOB    NOT NULL,
            attempt     INTEGER NOT NULL,
            done        INTEGER NOT NULL,
            lease_until INTEGER NOT NULL,
            keep_until  INTEGER NOT NULL
        ) STRICT;
        CREATE TABLE clock (highest INTEGER NOT NULL) STRICT;
        INSERT INTO clock VALUES (0);",
        // 2. A body is identified by another digest than in version 1, so one that was stored before cannot be
        // compared, and counts as equal. Where the digest is a new one, the fence is stored with a byte before
        // it. A process of version 1 that uses the file meanwhile stores its fences without that byte, and
        // compares them with those of its own leases alone. So nothing is to be changed in the file: SQLite
        // would read all of the table to add a column, under the lock, and fail where a page is damaged.
        "",
        // 3. The inbox. The key of an accepted event is done, and its `lease_until` is the event's number, negated.
        //
        // `events` has a row for each event, which does not change its size when the event is settled. States:
        // 2 unsettled, 3 handled, 4 ignored, 5 and 6 the same without a body, 7 discarded, 8 deleted, but its
        // number must not be used again, 9 dead. (0 and 1 take no room in a row. A list of more than two in an index's
        // condition would be made a table for each row.)
        //
        // `work` has the events that are unsettled or hold their lane. Places: 2 ready, 3 ready after a crash, 4 taken,
        // 5 holding, 6 behind, 7 aside. At most one event of a lane is in 2 to 5; while there is one, those behind it
        // are in 6. So the first row of a lane by place and number is what the others wait for. An event whose lease
        // expired goes from 4 to 3 or 6 and keeps its fence until it is taken again.
        "CREATE TABLE kinds (
            id     INTEGER PRIMARY KEY,
            name   TEXT    NOT NULL UNIQUE,
            paused INTEGER NOT NULL
        ) STRICT;
        INSERT INTO kinds VALUES (0, '', 0); -- everything
        CREATE TABLE events (
            seq        INTEGER PRIMARY KEY,
            kind       INTEGER NOT NULL,
            state      INTEGER NOT NULL,
            key        BLOB,
            chat       TEXT,
            accepted   INTEGER NOT NULL,
            keep_until INTEGER NOT NULL,
            settled    INTEGER NOT NULL,
            failures   INTEGER NOT NULL,
            redriven   INTEGER NOT NULL
        ) STRICT;
        CREATE INDEX events_body ON events (settled) WHERE state BETWEEN 3 AND 4;
        CREATE INDEX events_expiry ON events (keep_until) WHERE state BETWEEN 3 AND 8;
        CREATE INDEX events_dead ON events (seq, kind) WHERE state = 9;
        CREATE TABLE bodies (
            seq  INTEGER PRIMARY KEY,
            body BLOB    NOT NULL
        ) STRICT;
        CREATE TABLE work (
            seq          INTEGER PRIMARY KEY,
            kind         INTEGER NOT NULL,
            lane         INTEGER,
            place        INTEGER NOT NULL,
            due          INTEGER NOT NULL,
            fence        BLOB    NOT NULL,
            failures     INTEGER NOT NULL,
            crashes      INTEGER NOT NULL,
            first_failed INTEGER,
            tried        INTEGER NOT NULL
        ) STRICT;
        CREATE INDEX work_line ON work (lane, place) WHERE lane IS NOT NULL;
        CREATE INDEX work_due ON work (place, kind, due) WHERE place <> 6;
        CREATE INDEX work_aside ON work (lane, due) WHERE place = 7;
        CREATE TABLE failures (
            seq     INTEGER NOT NULL,
            number  INTEGER NOT NULL,
            at      INTEGER NOT NULL,
            outcome TEXT    NOT NULL,
            reason  TEXT    NOT NULL,
            PRIMARY KEY (seq, number)
        ) STRICT, WITHOUT ROWID;",
        // 4. The key of an accepted event has an empty fence, which nobody compares, where version 3 has 17 bytes. Its
        // body is always one that can be compared. A process of version 3 that uses the file meanwhile takes it for
        // one that cannot, which counts as equal.
        "",
        // 5. `headers` has lines `name: value`, for events that have some. `durations` has the microseconds that failed
        // attempts took, by the numbers of `failures`. They are tables of their own, because SQLite would read all of a
        // table to add a column. Triggers delete them, also for processes of version 4.
        "CREATE TABLE headers (
            seq     INTEGER PRIMARY KEY,
            headers BLOB    NOT NULL
        ) STRICT;
        CREATE TABLE durations (
            seq    INTEGER NOT NULL,
            number INTEGER NOT NULL,
            took   INTEGER NOT NULL,
            PRIMARY KEY (seq, number)
        ) STRICT, WITHOUT ROWID;
        CREATE TRIGGER bodies_headers AFTER DELETE ON bodies
            BEGIN DELETE FROM headers WHERE seq = OLD.seq; END;
        CREATE TRIGGER failures_durations AFTER DELETE ON failures
            BEGIN DELETE FROM durations WHERE seq = OLD.seq AND number = OLD.number; END;
        CREATE INDEX work_blocking ON work (seq)
            WHERE place < 6 AND lane IS NOT NULL AND (tried OR crashes > 0);
        CREATE INDEX work_tried ON work (seq) WHERE tried OR crashes > 0;
        CREATE INDEX work_alone ON work (seq) WHERE lane IS NULL;",
    ],
    highest_time: "SELECT highest FROM clock",
    set_highest_time: "UPDATE clock SET highest = ?1",
};
