-- The schema of a file, version 1, in the order in which an event uses it: accept, claim, settle, person, purge.
--
-- Times are milliseconds since 1970, and the last ones of what they limit. Names after a dollar sign stand for the numbers
-- that the enums of `schema.rs` give them.

-- The latest time that any process has seen, the lowest release of this library that may use the file, and a number that
-- no other file has. `spool_of`: if the file is a spool, the number of the database that it is in front of, or 0 while
-- that is unknown.
CREATE TABLE file (
    highest_time   INTEGER NOT NULL,
    lowest_release TEXT    NOT NULL,
    identity       INTEGER NOT NULL,
    spool_of       INTEGER
) STRICT;
INSERT INTO file VALUES (0, '0.1.0', random(), NULL);

-- Accept

-- The keys of runs and of accepted events. A row does not change its size when its key is done, so that it is changed
-- in place.
CREATE TABLE keys (
    id          INTEGER PRIMARY KEY,
    key         BLOB    NOT NULL UNIQUE, -- a digest, as the next one
    body        BLOB    NOT NULL,
    event       INTEGER,                 -- the event that was accepted with it, or NULL for that of a run
    fence       BLOB,                    -- NULL for that of an event
    attempt     INTEGER NOT NULL,
    done        INTEGER NOT NULL,        -- 1 for that of an event
    lease_until INTEGER NOT NULL,        -- 0 for that of an event
    keep_until  INTEGER NOT NULL
) STRICT;

-- The event types. A row without a name is no type, but the pause of its route, or of everything in that without a route.
-- `paused`: since when, or 0.
CREATE TABLE kinds (
    id     INTEGER PRIMARY KEY,
    name   TEXT    NOT NULL,
    paused INTEGER NOT NULL,
    route  TEXT    NOT NULL DEFAULT 'chat-platform',
    note   TEXT,                         -- who paused it and why
    UNIQUE (name, route)
) STRICT;
INSERT INTO kinds VALUES (0, '', 0, '', NULL); -- everything; the chat platform's own types follow, up to 7

-- A row does not change its size when its event is settled, so `settled` is the time of acceptance before. The last row
-- is never deleted, so that no number is used twice.
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
    redriven   INTEGER NOT NULL,
    delivery   INTEGER,                  -- of an item of a batch: the number of its delivery
    item       INTEGER,                  -- its own number, counted from 1
    items      INTEGER                   -- how many the delivery has
) STRICT;
CREATE INDEX events_delivery ON events (delivery) WHERE delivery IS NOT NULL;

-- A table of its own, because a body may take pages, and is deleted before its event.
CREATE TABLE bodies (
    seq     INTEGER PRIMARY KEY,
    headers BLOB,                        -- lines `name: value`
    body    BLOB    NOT NULL,
    kept    BLOB                         -- of an item of a batch: what is kept of its delivery, a JSON object
) STRICT;

-- Claim

-- The events that are unsettled or hold their lane. At most one event of a lane is in the places up to $Holding. While
-- there is one, those after it are $Behind it. So the first row of a lane by place and number is what the others wait
-- for.
CREATE TABLE work (
    seq          INTEGER PRIMARY KEY,
    kind         INTEGER NOT NULL,
    lane         INTEGER,
    place        INTEGER NOT NULL,
    due          INTEGER NOT NULL,       -- the end of the lease of an event that is $Taken
    fence        BLOB,                   -- kept after the lease has expired, until the event is taken again
    failures     INTEGER NOT NULL,
    crashes      INTEGER NOT NULL,
    first_failed INTEGER,                -- the first failure that counts, or of all while none does; a snooze before that
    tried        INTEGER NOT NULL,
    uncounted    INTEGER NOT NULL        -- the attempts that failed and did not count: 200 for each, and 1 while its type is slowed down
) STRICT;
CREATE INDEX work_line ON work (lane, place) WHERE lane IS NOT NULL;
CREATE INDEX work_due ON work (place, kind, due) WHERE place <> $Behind;
CREATE INDEX work_aside ON work (lane, due) WHERE place = $Aside;

-- Settle

CREATE TABLE failures (
    seq     INTEGER NOT NULL,
    number  INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    took    INTEGER,                     -- microseconds
    outcome TEXT    NOT NULL,
    reason  TEXT    NOT NULL,
    shape   INTEGER NOT NULL,            -- what it has in common with others of the same cause
    PRIMARY KEY (seq, number)
) STRICT, WITHOUT ROWID;

-- Person

CREATE INDEX work_tried ON work (seq) WHERE tried OR crashes > 0;
CREATE INDEX work_blocking ON work (seq)
    WHERE place < $Behind AND lane IS NOT NULL AND (tried OR crashes > 0);
CREATE INDEX events_dead ON events (seq, kind) WHERE state = $Dead;

-- The events of each chat, by runs of numbers and the lane of the chat. An index would change a page at random for each
-- event. A run is written at once, in its order, behind all others. See `queue/chats.rs`.
CREATE TABLE chats (
    run    INTEGER NOT NULL,
    lane   INTEGER NOT NULL,
    events BLOB    NOT NULL,             -- their places in the run
    PRIMARY KEY (run, lane)
) STRICT, WITHOUT ROWID;

-- What persons did, for a while. The last row is never deleted, so that no number is used twice.
CREATE TABLE actions (
    number  INTEGER PRIMARY KEY,
    at      INTEGER NOT NULL,
    who     TEXT    NOT NULL,
    reason  TEXT    NOT NULL,
    what    TEXT    NOT NULL,
    event   INTEGER,                     -- if it was one, until its chat is forgotten
    about   TEXT,                        -- what is paused, a digest of a chat, or what a change of all selects
    changed INTEGER NOT NULL,
    state   TEXT,                        -- that of a change of all that match, as the following columns
    chat    TEXT,                        -- the chat in its filter
    skipped INTEGER,
    reached INTEGER,                     -- the last event that was looked at
    rate    INTEGER,
    stepped INTEGER                      -- when the last step was made
) STRICT;
CREATE INDEX actions_running ON actions (number) WHERE state = 'running';
CREATE INDEX actions_chat ON actions (chat) WHERE chat IS NOT NULL;

-- The actions that have changed an event, until the event is deleted or its chat is forgotten.
CREATE TABLE changed (
    event  INTEGER NOT NULL,
    action INTEGER NOT NULL,
    PRIMARY KEY (event, action)
) STRICT, WITHOUT ROWID;

-- What each process has counted in each minute, from the start of that minute on; `span` is 1. A purge puts what is old
-- together by 30 minutes, and later by 720, of process 0; `span` is their number. `sample`: of requests that were refused,
-- lines about one of them, and its key, until its chat is forgotten.
CREATE TABLE counts (
    series  TEXT    NOT NULL,
    span    INTEGER NOT NULL,
    minute  INTEGER NOT NULL,            -- since 1970
    process INTEGER NOT NULL,
    kind    TEXT    NOT NULL,            -- an event type, or a route, as `Scope` writes it
    outcome TEXT    NOT NULL,
    number  INTEGER NOT NULL,
    sample  TEXT,
    key     BLOB,
    PRIMARY KEY (series, span, minute, process, kind, outcome)
) STRICT, WITHOUT ROWID;
CREATE INDEX counts_key ON counts (key) WHERE key IS NOT NULL;

-- What workers have noted that they handle: an event type, or a route, as `Scope` writes it. That on everything is of any worker.
CREATE TABLE handlers (
    of          TEXT    NOT NULL,
    is_fallback INTEGER NOT NULL,
    since       INTEGER NOT NULL,        -- it has been kept without an end
    seen        INTEGER NOT NULL,
    keep_until  INTEGER NOT NULL,
    worker      TEXT    NOT NULL,
    PRIMARY KEY (of, is_fallback)
) STRICT, WITHOUT ROWID;

-- Purge

-- By ranges, because SQLite would make a table of a longer list for each row.
CREATE INDEX events_body ON events (settled) WHERE state BETWEEN $Handled AND $Ignored;
CREATE INDEX events_expiry ON events (keep_until) WHERE state BETWEEN $Handled AND $Deleted;
-- A kind of a sender's own is deleted after its last event.
CREATE INDEX events_kind ON events (kind) WHERE kind > 7;
