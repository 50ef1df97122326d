-- Who is first in a lane. The others wait behind it.

-- Removes an event from the head, whose row is locked, and makes the next one of the lane the head. With a lease, that
-- one is taken if it can be: then its row is returned.
CREATE FUNCTION {schema}.advance(
    p_lane bigint, p_own bigint, p_lease bigint, p_namespace bigint, p_only text[], p_except text[]
)
RETURNS {schema}.head LANGUAGE plpgsql AS $tower_webhook$
DECLARE
    v_head {schema}.head%ROWTYPE;
    v_next {schema}.wait%ROWTYPE;
    v_fence uuid;
BEGIN
    IF p_own = 0 THEN
        SELECT * INTO v_next FROM {schema}.wait WHERE lane BETWEEN p_lane AND p_lane ORDER BY lane, seq LIMIT 1;
    END IF;
    IF v_next.seq IS NULL THEN
        DELETE FROM {schema}.head WHERE lane = p_lane AND own = p_own;
        RETURN NULL;
    END IF;
    -- A claim may have set its time back meanwhile.
    DELETE FROM {schema}.wait WHERE lane = p_lane AND seq = v_next.seq RETURNING due INTO v_next.due;
    IF p_lease IS NOT NULL
        AND v_next.due <= {schema}.micros()
        AND {schema}.is_open(v_next.kind, p_namespace, p_only, p_except)
    THEN
        v_fence := {schema}.new_fence();
        v_next.due := {schema}.micros() + p_lease;
    ELSE
        -- It could not be taken before, and a claim does not look back for long. Of events that one statement lets
        -- advance, the order is that of their numbers.
        v_next.due := greatest(v_next.due, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint);
    END IF;
    UPDATE {schema}.head SET
        seq = v_next.seq, due = v_next.due, kind = v_next.kind, failures = v_next.failures,
        uncounted = v_next.uncounted, crashes = v_next.crashes, is_tried = v_next.is_tried,
        is_suspect = v_fence IS NOT NULL OR v_next.crashes > 0,
        first_failed = v_next.first_failed, fence = v_fence
    WHERE lane = p_lane AND own = 0
    RETURNING * INTO v_head;
    IF v_fence IS NULL THEN RETURN NULL; END IF;
    RETURN v_head;
END $tower_webhook$;

-- Settles the head of a lane, whose row is locked, and those behind it, that a newer event of their kind replaces: it is
-- the head then, and keeps the lease. Returns how many were replaced.
CREATE FUNCTION {schema}.collapse(p_head {schema}.head, p_kinds text[]) RETURNS integer LANGUAGE plpgsql AS $tower_webhook$
DECLARE
    v_now bigint := {schema}.micros();
    v_next {schema}.wait%ROWTYPE;
    v_newest {schema}.wait%ROWTYPE;
    v_into bigint;
    v_seqs bigint[] := '{}';
    v_failures integer[] := '{}';
BEGIN
    IF p_head.own > 0
        OR p_head.first_failed IS NOT NULL AND NOT p_head.is_tried AND p_head.failures = 0
        OR NOT EXISTS (SELECT FROM {schema}.kinds k WHERE k.id = p_head.kind AND k.name = ANY (p_kinds))
    THEN
        RETURN 0;
    END IF;
    FOR v_next IN
        SELECT * FROM {schema}.wait WHERE lane BETWEEN p_head.lane AND p_head.lane ORDER BY lane, seq LIMIT 256
    LOOP
        EXIT WHEN v_next.kind <> p_head.kind OR v_next.due > v_now
            OR v_next.first_failed IS NOT NULL AND NOT v_next.is_tried AND v_next.failures = 0;
        v_newest := v_next;
        v_seqs := v_seqs || v_next.seq;
        v_failures := v_failures || v_next.failures;
    END LOOP;
    IF v_newest.seq IS NULL THEN RETURN 0; END IF;
    DELETE FROM {schema}.wait WHERE lane = p_head.lane AND seq = ANY (v_seqs);
    -- The head may be the newest: an event that was accepted at the same time may stand behind a larger number.
    v_into := greatest(v_newest.seq, p_head.seq);
    IF v_into > p_head.seq THEN
        UPDATE {schema}.head SET
            seq = v_newest.seq, failures = v_newest.failures, uncounted = v_newest.uncounted,
            crashes = v_newest.crashes, is_tried = v_newest.is_tried, first_failed = v_newest.first_failed
        WHERE lane = p_head.lane AND own = 0;
    END IF;
    WITH replaced AS (
        SELECT * FROM unnest(v_seqs || p_head.seq, v_failures || p_head.failures) AS e (seq, failures)
        WHERE e.seq <> v_into
    ), ended AS (
        INSERT INTO {schema}.ended (seq, at, failures, state) SELECT seq, v_now, failures, 'handled' FROM replaced
    )
    INSERT INTO {schema}.failures (seq, at, outcome, reason)
    SELECT seq, v_now, 'collapsed', convert_to('into event ' || v_into, 'UTF8') FROM replaced;
    RETURN cardinality(v_seqs);
END $tower_webhook$;

-- Lets the first event of the line be the head of the lane, whose row is locked and has no fence: an event with a
-- smaller number may have returned while the head was in progress.
CREATE FUNCTION {schema}.sort_head(p_lane bigint) RETURNS void LANGUAGE plpgsql AS $tower_webhook$
DECLARE
    v_head {schema}.head%ROWTYPE;
    v_next {schema}.wait%ROWTYPE;
BEGIN
    SELECT * INTO v_head FROM {schema}.head WHERE lane = p_lane AND own = 0;
    SELECT * INTO v_next FROM {schema}.wait WHERE lane BETWEEN p_lane AND p_lane ORDER BY lane, seq LIMIT 1;
    IF v_next.seq < v_head.seq THEN
        DELETE FROM {schema}.wait WHERE lane = p_lane AND seq = v_next.seq;
        INSERT INTO {schema}.wait (lane, seq, due, kind, failures, uncounted, crashes, is_tried, first_failed)
        VALUES (
            p_lane, v_head.seq, v_head.due, v_head.kind, v_head.failures, v_head.uncounted, v_head.crashes,
            v_head.is_tried, v_head.first_failed
        );
        UPDATE {schema}.head SET
            seq = v_next.seq, due = v_next.due, kind = v_next.kind, failures = v_next.failures,
            uncounted = v_next.uncounted, crashes = v_next.crashes, is_tried = v_next.is_tried, is_suspect = v_next.crashes > 0,
            first_failed = v_next.first_failed, fence = NULL
        WHERE lane = p_lane AND own = 0;
    END IF;
END $tower_webhook$;

-- Lets an event return to its line.
CREATE FUNCTION {schema}.rejoin(p_event {schema}.aside) RETURNS void LANGUAGE plpgsql AS $tower_webhook$
BEGIN
    INSERT INTO {schema}.head
        (lane, own, seq, due, kind, failures, uncounted, crashes, is_tried, is_suspect, first_failed)
    VALUES (
        p_event.lane, 0, p_event.seq, p_event.due, p_event.kind, p_event.failures, p_event.uncounted, p_event.crashes,
        p_event.is_tried, p_event.crashes > 0, p_event.first_failed
    )
    ON CONFLICT (lane, own) DO UPDATE SET lane = excluded.lane WHERE false;
    IF NOT FOUND THEN
        INSERT INTO {schema}.wait (lane, seq, due, kind, failures, uncounted, crashes, is_tried, first_failed)
        VALUES (
            p_event.lane, p_event.seq, p_event.due, p_event.kind, p_event.failures, p_event.uncounted, p_event.crashes,
            p_event.is_tried, p_event.first_failed
        );
        -- A dead letter that holds the lane stays first.
        IF (SELECT fence IS NULL AND due IS NOT NULL FROM {schema}.head WHERE lane = p_event.lane AND own = 0) THEN
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
        SELECT * FROM {schema}.aside WHERE lane BETWEEN p_lane AND p_lane AND due <= {schema}.micros()
        ORDER BY lane, due LIMIT 100 FOR UPDATE SKIP LOCKED
    LOOP
        DELETE FROM {schema}.aside WHERE due = v_aside.due AND seq = v_aside.seq;
        PERFORM {schema}.rejoin(v_aside);
    END LOOP;
END $tower_webhook$;
