-- Version 3: the inbox. Times are microseconds since 1970, by the server's clock.
--
-- An event is in exactly one of these tables beside `events`: `head` when it is first in its lane, `wait` when it
-- stands behind the head, `aside` when it is retried out of order and not due yet, `dead` and `ended`. Only a dead
-- letter that holds its lane is in two: `dead`, and `head` with a due time that never comes. What is written when an
-- event is handled is narrow: the row with its body is inserted once.
--
-- Whoever changes `head` or `wait` of a lane has locked the lane's row of `head`, or has inserted it. An acceptance
-- that finds it locks it, too, so that nobody removes it before its event is behind it.
--
-- The functions run each of their statements with a snapshot of its own, which sees what was committed while a lock
-- was waited for. That needs the isolation level `read committed`. Their settings leave the planner no choice but
-- the indexes, however empty it believes a table to be; those that look up single rows need only one of them. A later release that changes a function gives it another name.

-- Not null for a key whose event the inbox has accepted, until the inbox deletes the event.
ALTER TABLE {schema}.keys ADD COLUMN event bigint;

-- The nameless kind is all of them.
CREATE TABLE {schema}.kinds (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    is_seen boolean NOT NULL,
    is_paused boolean NOT NULL
);
INSERT INTO {schema}.kinds (name, is_seen, is_paused) VALUES ('', false, false);

CREATE TABLE {schema}.events (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    accepted bigint NOT NULL,
    keep_until bigint NOT NULL,
    lane bigint,
    kind integer NOT NULL,
    is_redriven boolean NOT NULL DEFAULT false,
    digest uuid,
    guard uuid,
    key bytea,
    chat bytea,
    body bytea
);
CREATE INDEX events_chat ON {schema}.events (substr(sha256(chat), 1, 8)) WHERE chat IS NOT NULL;

-- `own` is 0 in a lane, and the event's number for one that stands in no line. A row with a fence is leased until
-- it is due. `is_suspect`: it crashed before, or is leased and will have crashed when it is due.
CREATE TABLE {schema}.head (
    lane bigint NOT NULL,
    own bigint NOT NULL,
    seq bigint NOT NULL,
    due bigint NOT NULL,
    kind integer NOT NULL,
    failures integer NOT NULL,
    crashes integer NOT NULL,
    is_tried boolean NOT NULL,
    is_suspect boolean NOT NULL,
    first_failed bigint,
    fence uuid,
    PRIMARY KEY (lane, own)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX head_due ON {schema}.head (kind, is_suspect, due, seq);

CREATE TABLE {schema}.wait (
    lane bigint NOT NULL,
    seq bigint NOT NULL,
    due bigint NOT NULL,
    kind integer NOT NULL,
    failures integer NOT NULL,
    crashes integer NOT NULL,
    is_tried boolean NOT NULL,
    first_failed bigint,
    PRIMARY KEY (lane, seq)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE TABLE {schema}.aside (
    seq bigint PRIMARY KEY,
    lane bigint NOT NULL,
    due bigint NOT NULL,
    kind integer NOT NULL,
    failures integer NOT NULL,
    crashes integer NOT NULL,
    is_tried boolean NOT NULL,
    first_failed bigint
);
CREATE INDEX aside_due ON {schema}.aside (due, seq);
CREATE INDEX aside_lane ON {schema}.aside (lane, due);

CREATE TABLE {schema}.dead (
    seq bigint PRIMARY KEY,
    at bigint NOT NULL,
    kind integer NOT NULL,
    failures integer NOT NULL
);

-- `state` is 3 for handled, 4 for ignored, 5 for discarded. `has_body`: the body is to be deleted before the event.
CREATE TABLE {schema}.ended (
    seq bigint PRIMARY KEY,
    at bigint NOT NULL,
    keep_until bigint NOT NULL,
    failures integer NOT NULL,
    state smallint NOT NULL,
    has_body boolean NOT NULL
);
CREATE INDEX ended_bodies ON {schema}.ended (at) WHERE has_body;
CREATE INDEX ended_keep_until ON {schema}.ended (keep_until);

CREATE TABLE {schema}.failures (
    seq bigint NOT NULL,
    id bigint GENERATED ALWAYS AS IDENTITY,
    at bigint NOT NULL,
    outcome bytea NOT NULL,
    reason bytea NOT NULL,
    PRIMARY KEY (seq, id)
);

CREATE FUNCTION {schema}.micros() RETURNS bigint LANGUAGE sql VOLATILE
AS $tower_webhook$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $tower_webhook$;

-- What the queue recognises, and begins a transaction itself.
CREATE FUNCTION {schema}.refuse_isolation() RETURNS void LANGUAGE plpgsql AS $tower_webhook$
BEGIN
    RAISE EXCEPTION 'the isolation level has to be `read committed`' USING ERRCODE = 'TW001';
END $tower_webhook$;

-- Whether an event exists and is unsettled or dead.
CREATE FUNCTION {schema}.is_kept(p_seq bigint) RETURNS boolean LANGUAGE plpgsql AS $tower_webhook$
BEGIN
    RETURN EXISTS (SELECT FROM {schema}.events WHERE seq = p_seq)
        AND NOT EXISTS (SELECT FROM {schema}.ended WHERE seq = p_seq);
END $tower_webhook$;

-- Whether events of the kind can be taken.
CREATE FUNCTION {schema}.is_open(p_kind integer, p_only text[], p_except text[])
RETURNS boolean LANGUAGE plpgsql AS $tower_webhook$
BEGIN
    RETURN (
        SELECT NOT k.is_paused
            AND (p_only IS NULL OR k.name = ANY (p_only))
            AND k.name <> ALL (p_except)
            AND NOT (SELECT a.is_paused FROM {schema}.kinds a WHERE a.name = '')
        FROM {schema}.kinds k WHERE k.id = p_kind
    );
END $tower_webhook$;

-- The state of a key: 0 free, 1 done, 2 in flight.
CREATE FUNCTION {schema}.known(
    p_key uuid, p_body uuid, OUT o_state smallint, OUT o_same boolean, OUT o_remaining bigint
) LANGUAGE plpgsql AS $tower_webhook$
DECLARE
    v_event bigint;
BEGIN
    SELECT
        CASE WHEN done_until > clock_timestamp() THEN 1 WHEN lease_until > clock_timestamp() THEN 2 ELSE 0 END,
        old_body IS TRUE OR body = p_body,
        ceil(extract(epoch FROM lease_until - clock_timestamp()) * 1000000)::bigint,
        event
    INTO o_state, o_same, o_remaining, v_event
    FROM {schema}.keys WHERE key = p_key;
    IF NOT FOUND THEN
        o_state := 0;
    ELSIF o_state = 0 AND v_event IS NOT NULL AND {schema}.is_kept(v_event) THEN
        o_state := 1;
    END IF;
END $tower_webhook$;

-- Records a key as done. Returns false if it was done or in flight.
CREATE FUNCTION {schema}.keep_key(p_key uuid, p_body uuid, p_until bigint, p_event bigint)
RETURNS boolean LANGUAGE plpgsql AS $tower_webhook$
BEGIN
    INSERT INTO {schema}.keys AS known (key, body, done_until, old_body, event)
    VALUES (p_key, p_body, timestamptz 'epoch' + p_until * interval '1 microsecond', NULL, p_event)
    ON CONFLICT (key) DO UPDATE SET
        body = excluded.body,
        old_body = NULL,
        done_until = excluded.done_until,
        fence = NULL,
        lease_until = NULL,
        known_until = NULL,
        attempts = NULL,
        event = excluded.event
    WHERE (known.done_until > clock_timestamp() OR known.lease_until > clock_timestamp()) IS NOT TRUE
        AND NOT {schema}.is_kept(known.event);
    RETURN FOUND;
END $tower_webhook$;

-- `o_answer`: 0 new, 1 duplicate, 2 in flight, 3 body replayed.
CREATE FUNCTION {schema}.accept(
    p_key uuid, p_key_body uuid, p_guard uuid, p_guard_body uuid,
    p_kind text, p_raw bytea, p_chat bytea, p_lane bigint, p_body bytea, p_retain bigint,
    p_outcome bytea, p_reason bytea, p_lease bigint,
    OUT o_answer smallint, OUT o_same boolean, OUT o_remaining bigint,
    OUT o_seq bigint, OUT o_accepted bigint, OUT o_fence uuid
)
LANGUAGE plpgsql
    SET enable_seqscan = off
AS $tower_webhook$
DECLARE
    v_state smallint;
    v_kind integer;
    v_is_open boolean;
    v_fence uuid;
    v_losses integer := 0;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM {schema}.refuse_isolation();
    END IF;
    LOOP
        SELECT k.id, NOT k.is_paused AND NOT a.is_paused INTO v_kind, v_is_open
        FROM {schema}.kinds k, {schema}.kinds a WHERE k.name = p_kind AND k.is_seen AND a.name = '';
        EXIT WHEN FOUND;
        INSERT INTO {schema}.kinds (name, is_seen, is_paused) VALUES (p_kind, true, false)
            ON CONFLICT (name) DO UPDATE SET is_seen = true;
    END LOOP;
    LOOP
        PERFORM FROM {schema}.keys WHERE key = p_key;
        IF FOUND THEN
            SELECT * INTO v_state, o_same, o_remaining FROM {schema}.known(p_key, p_key_body);
            IF v_state > 0 THEN
                o_answer := v_state;
                RETURN;
            END IF;
        END IF;
        IF p_guard IS NOT NULL THEN
            SELECT * INTO v_state, o_same, o_remaining FROM {schema}.known(p_guard, p_guard_body);
            IF v_state > 0 THEN
                o_answer := CASE WHEN v_state = 1 AND NOT o_same THEN 3 ELSE v_state END;
                RETURN;
            END IF;
        END IF;

        o_accepted := {schema}.micros();
        INSERT INTO {schema}.events (accepted, keep_until, lane, kind, digest, guard, key, chat, body)
        VALUES (o_accepted, o_accepted + p_retain, p_lane, v_kind, p_key, p_guard, p_raw, p_chat, p_body)
        RETURNING seq INTO o_seq;
        IF p_key IS NULL OR {schema}.keep_key(p_key, p_key_body, o_accepted + p_retain, o_seq) THEN
            EXIT WHEN p_guard IS NULL OR {schema}.keep_key(p_guard, p_guard_body, o_accepted + p_retain, o_seq);
            -- It was free, and nobody has seen it since.
            DELETE FROM {schema}.keys WHERE key = p_key;
        END IF;
        -- Another one kept the key after it was looked up: the next round sees it.
        DELETE FROM {schema}.events WHERE seq = o_seq;
        v_losses := v_losses + 1;
        IF v_losses > 100 THEN
            RAISE EXCEPTION 'a key cannot be kept although it is free' USING ERRCODE = 'XX001';
        END IF;
    END LOOP;

    o_answer := 0;
    IF p_outcome IS NOT NULL THEN
        INSERT INTO {schema}.dead (seq, at, kind, failures) VALUES (o_seq, o_accepted, v_kind, 0);
        INSERT INTO {schema}.failures (seq, at, outcome, reason) VALUES (o_seq, o_accepted, p_outcome, p_reason);
        RETURN;
    END IF;
    IF p_lease IS NOT NULL AND v_is_open THEN
        v_fence := gen_random_uuid();
    END IF;
    PERFORM FROM {schema}.aside WHERE lane = p_lane AND due <= o_accepted LIMIT 1;
    IF FOUND THEN
        PERFORM {schema}.rejoin_lane(p_lane);
    END IF;
    INSERT INTO {schema}.head (lane, own, seq, due, kind, failures, crashes, is_tried, is_suspect, fence)
    VALUES (
        coalesce(p_lane, 0),
        CASE WHEN p_lane IS NULL THEN o_seq ELSE 0 END,
        o_seq,
        CASE WHEN v_fence IS NULL THEN o_accepted ELSE {schema}.micros() + p_lease END,
        v_kind, 0, 0, false, v_fence IS NOT NULL, v_fence
    )
    ON CONFLICT (lane, own) DO UPDATE SET lane = excluded.lane WHERE false;
    IF FOUND THEN
        o_fence := v_fence;
    ELSE
        INSERT INTO {schema}.wait (lane, seq, due, kind, failures, crashes, is_tried)
        VALUES (p_lane, o_seq, o_accepted, v_kind, 0, 0, false);
    END IF;
END $tower_webhook$;

-- Lets the first event of the line be the head of the lane, whose row is locked and has no fence: an event with a
-- smaller number may have returned while the head was in progress.
CREATE FUNCTION {schema}.sort_head(p_lane bigint) RETURNS void LANGUAGE plpgsql AS $tower_webhook$
DECLARE
    v_head {schema}.head%ROWTYPE;
    v_next {schema}.wait%ROWTYPE;
BEGIN
    SELECT * INTO v_head FROM {schema}.head WHERE lane = p_lane AND own = 0;
    SELECT * INTO v_next FROM {schema}.wait WHERE lane = p_lane ORDER BY lane, seq LIMIT 1;
    IF v_next.seq < v_head.seq THEN
        DELETE FROM {schema}.wait WHERE lane = p_lane AND seq = v_next.seq;
        INSERT INTO {schema}.wait (lane, seq, due, kind, failures, crashes, is_tried, first_failed)
        VALUES (
            p_lane, v_head.seq, v_head.due, v_head.kind, v_head.failures, v_head.crashes, v_head.is_tried,
            v_head.first_failed
        );
        UPDATE {schema}.head SET
            seq = v_next.seq, due = v_next.due, kind = v_next.kind, failures = v_next.failures,
            crashes = v_next.crashes, is_tried = v_next.is_tried, is_suspect = v_next.crashes > 0,
            first_failed = v_next.first_failed, fence = NULL
        WHERE lane = p_lane AND own = 0;
    END IF;
END $tower_webhook$;

-- Removes an event from the head, whose row is locked, and makes the next one of the lane the head. With a lease, that
-- one is taken if it can be: then its row is returned.
CREATE FUNCTION {schema}.advance(p_lane bigint, p_own bigint, p_lease bigint, p_only text[], p_except text[])
RETURNS {schema}.head LANGUAGE plpgsql AS $tower_webhook$
DECLARE
    v_head {schema}.head%ROWTYPE;
    v_next {schema}.wait%ROWTYPE;
    v_fence uuid;
BEGIN
    IF p_own = 0 THEN
        SELECT * INTO v_next FROM {schema}.wait WHERE lane = p_lane ORDER BY lane, seq LIMIT 1;
    END IF;
    IF v_next.seq IS NULL THEN
        DELETE FROM {schema}.head WHERE lane = p_lane AND own = p_own;
        RETURN NULL;
    END IF;
    DELETE FROM {schema}.wait WHERE lane = p_lane AND seq = v_next.seq;
    IF p_lease IS NOT NULL
        AND v_next.due <= {schema}.micros()
        AND {schema}.is_open(v_next.kind, p_only, p_except)
    THEN
        v_fence := gen_random_uuid();
        v_next.due := {schema}.micros() + p_lease;
    END IF;
    UPDATE {schema}.head SET
        seq = v_next.seq, due = v_next.due, kind = v_next.kind, failures = v_next.failures,
        crashes = v_next.crashes, is_tried = v_next.is_tried,
        is_suspect = v_fence IS NOT NULL OR v_next.crashes > 0,
        first_failed = v_next.first_failed, fence = v_fence
    WHERE lane = p_lane AND own = 0
    RETURNING * INTO v_head;
    IF v_fence IS NULL THEN
        RETURN NULL;
    END IF;
    RETURN v_head;
END $tower_webhook$;

-- Lets an event return to its line.
CREATE FUNCTION {schema}.rejoin(p_event {schema}.aside) RETURNS void LANGUAGE plpgsql AS $tower_webhook$
DECLARE
    v_head {schema}.head%ROWTYPE;
BEGIN
    INSERT INTO {schema}.head
        (lane, own, seq, due, kind, failures, crashes, is_tried, is_suspect, first_failed)
    VALUES (
        p_event.lane, 0, p_event.seq, p_event.due, p_event.kind, p_event.failures, p_event.crashes,
        p_event.is_tried, p_event.crashes > 0, p_event.first_failed
    )
    ON CONFLICT (lane, own) DO UPDATE SET lane = excluded.lane WHERE false;
    IF NOT FOUND THEN
        INSERT INTO {schema}.wait (lane, seq, due, kind, failures, crashes, is_tried, first_failed)
        VALUES (
            p_event.lane, p_event.seq, p_event.due, p_event.kind, p_event.failures, p_event.crashes,
            p_event.is_tried, p_event.first_failed
        );
        -- A dead letter that holds the lane stays first.
        IF EXISTS (
            SELECT FROM {schema}.head
            WHERE lane = p_event.lane AND own = 0 AND fence IS NULL AND due < 9223372036854775807
        ) THEN
            PERFORM {schema}.sort_head(p_event.lane);
        END IF;
    END IF;
END $tower_webhook$;

-- Lets the events of a lane return that are due.
CREATE FUNCTION {schema}.rejoin_lane(p_lane bigint) RETURNS void LANGUAGE plpgsql AS $tower_webhook$
DECLARE
    v_aside {schema}.aside%ROWTYPE;
BEGIN
    FOR v_aside IN
        SELECT * FROM {schema}.aside WHERE lane = p_lane AND due <= {schema}.micros()
        ORDER BY lane, due LIMIT 100 FOR UPDATE SKIP LOCKED
    LOOP
        DELETE FROM {schema}.aside WHERE seq = v_aside.seq;
        PERFORM {schema}.rejoin(v_aside);
    END LOOP;
END $tower_webhook$;

CREATE FUNCTION {schema}.finish(p_seq bigint, p_state integer, p_failures integer)
RETURNS void LANGUAGE plpgsql AS $tower_webhook$
BEGIN
    INSERT INTO {schema}.ended (seq, at, keep_until, failures, state, has_body)
    SELECT p_seq, {schema}.micros(), keep_until, p_failures, p_state, p_state < 5
    FROM {schema}.events WHERE seq = p_seq;
END $tower_webhook$;

-- Takes events that are due. The last row has no number: its `o_tried_for` is the time until there may be more.
CREATE FUNCTION {schema}.claim(p_lease bigint, p_only text[], p_except text[], p_limit bigint, p_suspects bigint)
RETURNS TABLE (
    o_seq bigint, o_fence uuid, o_place bigint, o_is_in_lane boolean, o_kind text, o_key bytea, o_body bytea,
    o_accepted bigint, o_is_redriven boolean, o_failures integer, o_crashes integer, o_tried_for bigint
)
LANGUAGE plpgsql
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
    SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $tower_webhook$
DECLARE
    v_now bigint := {schema}.micros();
    v_kinds integer[];
    v_next bigint;
    v_returned bigint := 0;
    v_suspects bigint := p_suspects;
    v_left bigint;
    v_taken bigint := 0;
    v_again boolean;
    v_aside {schema}.aside%ROWTYPE;
    v_head {schema}.head%ROWTYPE;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM {schema}.refuse_isolation();
    END IF;
    FOR v_aside IN
        SELECT * FROM {schema}.aside WHERE due <= v_now ORDER BY due, seq LIMIT 100 FOR UPDATE SKIP LOCKED
    LOOP
        DELETE FROM {schema}.aside WHERE seq = v_aside.seq;
        PERFORM {schema}.rejoin(v_aside);
        v_returned := v_returned + 1;
    END LOOP;
    SELECT array_agg(k.id) INTO v_kinds FROM {schema}.kinds k
    WHERE k.is_seen AND {schema}.is_open(k.id, p_only, p_except);
    IF v_returned = 100 THEN
        v_next := v_now;
    ELSE
        SELECT a.due INTO v_next FROM {schema}.aside a
        WHERE a.due > v_now AND a.kind = ANY (v_kinds) ORDER BY a.due, a.seq LIMIT 1;
    END IF;
    -- What is in progress elsewhere is due when its lease expires.
    SELECT least(v_next, min(leased.due)) INTO v_next
    FROM unnest(v_kinds) AS o (kind)
    CROSS JOIN LATERAL (
        SELECT h.due FROM {schema}.head h
        WHERE h.kind = o.kind AND h.is_suspect AND h.due > v_now
        ORDER BY h.due, h.seq LIMIT 1
    ) AS leased;

    LOOP
        v_again := false;
        v_left := p_limit - v_taken;
        FOR v_head IN
            WITH clean AS MATERIALIZED (
                SELECT found.* FROM unnest(v_kinds) AS o (kind)
                CROSS JOIN LATERAL (
                    SELECT h.* FROM {schema}.head h
                    WHERE h.kind = o.kind AND NOT h.is_suspect AND h.due <= v_now
                    ORDER BY h.due, h.seq LIMIT v_left
                    FOR UPDATE SKIP LOCKED
                ) AS found
            ), suspect AS MATERIALIZED (
                SELECT found.* FROM unnest(v_kinds) AS o (kind)
                CROSS JOIN LATERAL (
                    SELECT h.* FROM {schema}.head h
                    WHERE h.kind = o.kind AND h.is_suspect AND h.due <= v_now
                    ORDER BY h.due, h.seq LIMIT least(v_left, v_suspects)
                    FOR UPDATE SKIP LOCKED
                ) AS found
            )
            SELECT * FROM (
                SELECT * FROM clean
                UNION ALL
                (SELECT * FROM suspect ORDER BY due, seq LIMIT v_suspects)
            ) AS found
            -- Suspects were in progress before all that waits.
            ORDER BY is_suspect DESC, due, seq LIMIT v_left
        LOOP
            IF v_head.fence IS NOT NULL THEN
                v_head.crashes := v_head.crashes + 1;
                IF v_head.own = 0 AND EXISTS (
                    SELECT FROM {schema}.wait w WHERE w.lane = v_head.lane AND w.seq < v_head.seq
                ) THEN
                    UPDATE {schema}.head h SET crashes = v_head.crashes, fence = NULL
                    WHERE h.lane = v_head.lane AND h.own = 0;
                    PERFORM {schema}.sort_head(v_head.lane);
                    v_again := true;
                    CONTINUE;
                END IF;
            END IF;
            UPDATE {schema}.head h SET
                due = v_now + p_lease, crashes = v_head.crashes, is_suspect = true, fence = gen_random_uuid()
            WHERE h.lane = v_head.lane AND h.own = v_head.own
            RETURNING h.fence INTO o_fence;
            IF v_head.crashes > 0 THEN
                v_suspects := v_suspects - 1;
            END IF;
            v_taken := v_taken + 1;
            o_seq := v_head.seq;
            o_place := v_head.lane;
            o_is_in_lane := v_head.own = 0;
            o_failures := v_head.failures;
            o_crashes := v_head.crashes;
            o_tried_for := v_now - v_head.first_failed;
            SELECT k.name, e.key, e.body, e.accepted, e.is_redriven
            INTO o_kind, o_key, o_body, o_accepted, o_is_redriven
            FROM {schema}.events e, {schema}.kinds k WHERE e.seq = v_head.seq AND k.id = e.kind;
            RETURN NEXT;
        END LOOP;
        EXIT WHEN NOT v_again;
    END LOOP;

    SELECT least(v_next, min(ready.due)) INTO v_next
    FROM unnest(v_kinds) AS o (kind)
    CROSS JOIN LATERAL (
        SELECT h.due FROM {schema}.head h
        WHERE h.kind = o.kind AND NOT h.is_suspect AND h.due < 9223372036854775807
        ORDER BY h.due, h.seq LIMIT 1
    ) AS ready;
    IF v_suspects > 0 THEN
        SELECT least(v_next, min(ready.due)) INTO v_next
        FROM unnest(v_kinds) AS o (kind)
        CROSS JOIN LATERAL (
            SELECT h.due FROM {schema}.head h
            WHERE h.kind = o.kind AND h.is_suspect AND h.due <= v_now
            ORDER BY h.due, h.seq LIMIT 1
        ) AS ready;
    END IF;
    o_seq := NULL;
    o_body := NULL;
    o_tried_for := greatest(v_next - v_now, 0);
    IF v_next IS NULL THEN
        o_tried_for := NULL;
    END IF;
    RETURN NEXT;
END $tower_webhook$;

CREATE FUNCTION {schema}.extend(p_seq bigint, p_fence uuid, p_place bigint, p_lease bigint)
RETURNS boolean
LANGUAGE plpgsql
    SET enable_seqscan = off
AS $tower_webhook$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM {schema}.refuse_isolation();
    END IF;
    UPDATE {schema}.head SET due = {schema}.micros() + p_lease
    WHERE lane = p_place AND own = ANY (ARRAY[0, p_seq]) AND seq = p_seq AND fence = p_fence;
    RETURN FOUND;
END $tower_webhook$;

-- `p_action`: 3 handled, 4 ignored, 5 discarded, 6 dead, 2 retry, 0 released. Then the next event of the lane, if it
-- was taken.
CREATE FUNCTION {schema}.settle(
    p_seq bigint, p_fence uuid, p_place bigint, p_action integer, p_after bigint, p_outcome bytea, p_reason bytea,
    p_counts boolean, p_blocks boolean, p_holds boolean, p_lease bigint, p_only text[], p_except text[],
    OUT o_is_held boolean,
    OUT o_seq bigint, OUT o_fence uuid, OUT o_place bigint, OUT o_is_in_lane boolean, OUT o_kind text, OUT o_key bytea,
    OUT o_body bytea, OUT o_accepted bigint, OUT o_is_redriven boolean, OUT o_failures integer,
    OUT o_crashes integer, OUT o_tried_for bigint
)
LANGUAGE plpgsql
    SET enable_seqscan = off
AS $tower_webhook$
DECLARE
    v_now bigint;
    v_head {schema}.head%ROWTYPE;
    v_next {schema}.head%ROWTYPE;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM {schema}.refuse_isolation();
    END IF;
    SELECT * INTO v_head FROM {schema}.head
    WHERE lane = p_place AND own = ANY (ARRAY[0, p_seq]) AND seq = p_seq AND fence = p_fence
    FOR UPDATE;
    o_is_held := FOUND;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    v_now := {schema}.micros();
    IF v_head.own = 0 THEN
        PERFORM FROM {schema}.aside WHERE lane = v_head.lane AND due <= v_now LIMIT 1;
        IF FOUND THEN
            PERFORM {schema}.rejoin_lane(v_head.lane);
        END IF;
    END IF;
    IF p_action <> 0 THEN
        v_head.crashes := 0;
    END IF;
    IF p_outcome IS NOT NULL THEN
        v_head.is_tried := true;
        INSERT INTO {schema}.failures (seq, at, outcome, reason) VALUES (p_seq, v_now, p_outcome, p_reason);
        DELETE FROM {schema}.failures f WHERE f.seq = p_seq AND f.id <= (
            SELECT old.id FROM {schema}.failures old WHERE old.seq = p_seq ORDER BY old.id DESC OFFSET 100 LIMIT 1
        );
    END IF;

    IF p_action = 0 THEN
        v_head.due := v_now;
    ELSIF p_action = 2 THEN
        IF p_counts THEN
            v_head.failures := least(v_head.failures, 2147483646) + 1;
            v_head.first_failed := coalesce(v_head.first_failed, v_now);
        END IF;
        v_head.due := v_now + p_after;
    ELSIF p_action = 6 THEN
        INSERT INTO {schema}.dead (seq, at, kind, failures)
        VALUES (p_seq, v_now, v_head.kind, v_head.failures);
        v_head.due := 9223372036854775807;
    ELSE
        INSERT INTO {schema}.ended (seq, at, keep_until, failures, state, has_body)
        SELECT p_seq, v_now, keep_until, v_head.failures, p_action, p_action < 5
        FROM {schema}.events WHERE seq = p_seq;
    END IF;

    IF p_action = 0
        OR p_action = 2 AND (p_blocks OR v_head.own > 0)
        OR p_action = 6 AND p_holds AND v_head.own = 0
    THEN
        UPDATE {schema}.head SET
            due = v_head.due, failures = v_head.failures, crashes = v_head.crashes, is_tried = v_head.is_tried,
            is_suspect = v_head.crashes > 0, first_failed = v_head.first_failed, fence = NULL
        WHERE lane = v_head.lane AND own = v_head.own;
        IF v_head.own = 0 AND p_action <> 6 THEN
            PERFORM {schema}.sort_head(v_head.lane);
        END IF;
        RETURN;
    END IF;
    IF p_action = 2 THEN
        INSERT INTO {schema}.aside (seq, lane, due, kind, failures, crashes, is_tried, first_failed)
        VALUES (
            p_seq, v_head.lane, v_head.due, v_head.kind, v_head.failures, v_head.crashes, v_head.is_tried,
            v_head.first_failed
        );
    END IF;
    v_next := {schema}.advance(v_head.lane, v_head.own, p_lease, p_only, p_except);
    IF v_next.seq IS NOT NULL THEN
        o_seq := v_next.seq;
        o_fence := v_next.fence;
        o_place := v_next.lane;
        o_is_in_lane := true;
        o_failures := v_next.failures;
        o_crashes := v_next.crashes;
        o_tried_for := v_now - v_next.first_failed;
        SELECT k.name, e.key, e.body, e.accepted, e.is_redriven
        INTO o_kind, o_key, o_body, o_accepted, o_is_redriven
        FROM {schema}.events e, {schema}.kinds k WHERE e.seq = v_next.seq AND k.id = e.kind;
    END IF;
END $tower_webhook$;

-- 0 made, 1 not found, 2 wrong state, 3 without body. An event that moves between the look-ups is looked up again.
CREATE FUNCTION {schema}.redrive(p_seq bigint) RETURNS integer
LANGUAGE plpgsql
    SET enable_seqscan = off
AS $tower_webhook$
DECLARE
    v_now bigint := {schema}.micros();
    v_event {schema}.events%ROWTYPE;
    v_aside {schema}.aside%ROWTYPE;
    v_head {schema}.head%ROWTYPE;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM {schema}.refuse_isolation();
    END IF;
    FOR round IN 1..100 LOOP
        SELECT * INTO v_event FROM {schema}.events WHERE seq = p_seq;
        IF NOT FOUND THEN
            RETURN 1;
        END IF;
        IF v_event.body IS NULL THEN
            RETURN 3;
        END IF;

        DELETE FROM {schema}.aside WHERE seq = p_seq RETURNING * INTO v_aside;
        IF FOUND THEN
            v_aside.due := v_now;
            PERFORM {schema}.rejoin(v_aside);
            RETURN 0;
        END IF;

        SELECT * INTO v_head FROM {schema}.head
        WHERE lane = coalesce(v_event.lane, 0) AND own = CASE WHEN v_event.lane IS NULL THEN p_seq ELSE 0 END
        FOR UPDATE;
        IF FOUND AND v_head.seq = p_seq THEN
            IF v_head.fence IS NOT NULL AND v_head.due > v_now THEN
                RETURN 2;
            END IF;
            IF v_head.fence IS NOT NULL THEN
                v_head.crashes := v_head.crashes + 1;
            END IF;
            IF v_head.due = 9223372036854775807 THEN
                DELETE FROM {schema}.dead WHERE seq = p_seq;
                UPDATE {schema}.events SET is_redriven = true WHERE seq = p_seq;
                v_head.failures := 0;
                v_head.crashes := 0;
                v_head.first_failed := NULL;
            END IF;
            UPDATE {schema}.head SET
                due = v_now, failures = v_head.failures, crashes = v_head.crashes,
                is_suspect = v_head.crashes > 0, first_failed = v_head.first_failed, fence = NULL
            WHERE lane = v_head.lane AND own = v_head.own;
            IF v_head.own = 0 THEN
                PERFORM {schema}.sort_head(v_head.lane);
            END IF;
            RETURN 0;
        END IF;
        IF FOUND THEN
            UPDATE {schema}.wait SET due = v_now WHERE lane = v_event.lane AND seq = p_seq;
            IF FOUND THEN
                RETURN 0;
            END IF;
        END IF;

        -- What deletes the body has locked the row of `ended`.
        PERFORM FROM {schema}.ended WHERE seq = p_seq FOR UPDATE;
        IF FOUND THEN
            IF (SELECT body IS NULL FROM {schema}.events WHERE seq = p_seq) THEN
                RETURN 3;
            END IF;
            DELETE FROM {schema}.ended WHERE seq = p_seq;
        ELSE
            PERFORM FROM {schema}.dead WHERE seq = p_seq FOR UPDATE;
            -- It became one that holds its lane since the head was looked at.
            CONTINUE WHEN NOT FOUND OR EXISTS (
                SELECT FROM {schema}.head WHERE lane = v_event.lane AND own = 0 AND seq = p_seq
            );
            DELETE FROM {schema}.dead WHERE seq = p_seq;
        END IF;
        IF FOUND THEN
            UPDATE {schema}.events SET lane = NULL, is_redriven = true WHERE seq = p_seq;
            INSERT INTO {schema}.head (lane, own, seq, due, kind, failures, crashes, is_tried, is_suspect)
            VALUES (
                0, p_seq, p_seq, v_now, v_event.kind, 0, 0,
                EXISTS (SELECT FROM {schema}.failures WHERE seq = p_seq), false
            );
            RETURN 0;
        END IF;
    END LOOP;
    RAISE EXCEPTION 'event % is nowhere', p_seq USING ERRCODE = 'XX001';
END $tower_webhook$;

-- As `redrive`.
CREATE FUNCTION {schema}.discard(p_seq bigint) RETURNS integer
LANGUAGE plpgsql
    SET enable_seqscan = off
AS $tower_webhook$
DECLARE
    v_event {schema}.events%ROWTYPE;
    v_head {schema}.head%ROWTYPE;
    v_failures integer;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM {schema}.refuse_isolation();
    END IF;
    FOR round IN 1..100 LOOP
        SELECT * INTO v_event FROM {schema}.events WHERE seq = p_seq;
        IF NOT FOUND THEN
            RETURN 1;
        END IF;

        DELETE FROM {schema}.aside WHERE seq = p_seq RETURNING failures INTO v_failures;
        IF FOUND THEN
            PERFORM {schema}.finish(p_seq, 5, v_failures);
            RETURN 0;
        END IF;

        SELECT * INTO v_head FROM {schema}.head
        WHERE lane = coalesce(v_event.lane, 0) AND own = CASE WHEN v_event.lane IS NULL THEN p_seq ELSE 0 END
        FOR UPDATE;
        IF FOUND AND v_head.seq = p_seq THEN
            DELETE FROM {schema}.dead WHERE seq = p_seq;
            PERFORM {schema}.finish(p_seq, 5, v_head.failures);
            PERFORM {schema}.advance(v_head.lane, v_head.own, NULL, NULL, NULL);
            RETURN 0;
        END IF;
        IF FOUND THEN
            DELETE FROM {schema}.wait WHERE lane = v_event.lane AND seq = p_seq RETURNING failures INTO v_failures;
            IF FOUND THEN
                PERFORM {schema}.finish(p_seq, 5, v_failures);
                RETURN 0;
            END IF;
        END IF;

        SELECT failures INTO v_failures FROM {schema}.dead WHERE seq = p_seq FOR UPDATE;
        IF FOUND THEN
            -- It became one that holds its lane since the head was looked at.
            CONTINUE WHEN EXISTS (
                SELECT FROM {schema}.head WHERE lane = v_event.lane AND own = 0 AND seq = p_seq
            );
            DELETE FROM {schema}.dead WHERE seq = p_seq;
            PERFORM {schema}.finish(p_seq, 5, v_failures);
            RETURN 0;
        END IF;
        IF EXISTS (SELECT FROM {schema}.ended WHERE seq = p_seq) THEN
            RETURN 2;
        END IF;
    END LOOP;
    RAISE EXCEPTION 'event % is nowhere', p_seq USING ERRCODE = 'XX001';
END $tower_webhook$;

CREATE FUNCTION {schema}.forget(p_chat bytea) RETURNS bigint
LANGUAGE plpgsql
    SET enable_seqscan = off
AS $tower_webhook$
DECLARE
    v_seq bigint;
    v_count bigint := 0;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM {schema}.refuse_isolation();
    END IF;
    FOR v_seq IN
        SELECT seq FROM {schema}.events
        WHERE substr(sha256(chat), 1, 8) = substr(sha256(p_chat), 1, 8) AND chat = p_chat
        ORDER BY seq
    LOOP
        -- A redrive that comes first makes it unsettled again, and one that comes later waits for this row.
        LOOP
            PERFORM {schema}.discard(v_seq);
            UPDATE {schema}.ended SET has_body = false WHERE seq = v_seq;
            EXIT WHEN FOUND OR NOT EXISTS (SELECT FROM {schema}.events WHERE seq = v_seq);
        END LOOP;
        -- Their texts may quote the body.
        DELETE FROM {schema}.failures WHERE seq = v_seq;
        UPDATE {schema}.events SET body = NULL WHERE seq = v_seq AND body IS NOT NULL;
        IF FOUND THEN
            v_count := v_count + 1;
        END IF;
    END LOOP;
    RETURN v_count;
END $tower_webhook$;

-- Returns whether there may be more.
CREATE FUNCTION {schema}.purge(p_keep bigint, p_step bigint) RETURNS boolean
LANGUAGE plpgsql
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
    SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $tower_webhook$
DECLARE
    v_now bigint := {schema}.micros();
    v_seqs bigint[];
    v_keys uuid[];
    v_bodies bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM {schema}.refuse_isolation();
    END IF;
    SELECT array_agg(seq) INTO v_seqs FROM (
        SELECT seq FROM {schema}.ended
        -- A body is deleted first: an event may be settled when its retention has ended.
        WHERE keep_until <= v_now AND (NOT has_body OR at <= v_now - p_keep)
        ORDER BY keep_until LIMIT p_step FOR UPDATE SKIP LOCKED
    ) AS found;
    IF v_seqs IS NOT NULL THEN
        DELETE FROM {schema}.ended WHERE seq = ANY (v_seqs);
        DELETE FROM {schema}.failures WHERE seq = ANY (v_seqs);
        WITH deleted AS (
            DELETE FROM {schema}.events WHERE seq = ANY (v_seqs) RETURNING digest, guard
        )
        SELECT array_agg(key) INTO v_keys
        FROM deleted CROSS JOIN LATERAL (VALUES (digest), (guard)) AS digests (key) WHERE key IS NOT NULL;
        DELETE FROM {schema}.keys
        WHERE key = ANY (v_keys) AND event = ANY (v_seqs)
            AND greatest(done_until, lease_until, known_until) <= clock_timestamp();
        -- A store took the key over, which purges it when it expires.
        UPDATE {schema}.keys SET event = NULL WHERE key = ANY (v_keys) AND event = ANY (v_seqs);
        IF cardinality(v_seqs) = p_step THEN
            RETURN true;
        END IF;
    END IF;

    SELECT array_agg(seq) INTO v_seqs FROM (
        SELECT seq FROM {schema}.ended
        WHERE has_body AND at <= v_now - p_keep ORDER BY at LIMIT p_step FOR UPDATE SKIP LOCKED
    ) AS found;
    v_bodies := coalesce(cardinality(v_seqs), 0);
    IF v_bodies > 0 THEN
        UPDATE {schema}.ended SET has_body = false WHERE seq = ANY (v_seqs);
        UPDATE {schema}.events SET body = NULL WHERE seq = ANY (v_seqs);
    END IF;
    RETURN v_bodies = p_step;
END $tower_webhook$;
