-- Who is first in a lane. The others wait behind it.

-- Removes an event from the head, whose row is locked, and makes the next one of the lane the head. With a lease, that
-- one is taken if it is of the route and can be: then its row is returned.
CREATE FUNCTION {schema}.advance(
    p_lane bigint, p_own bigint, p_lease bigint, p_route text, p_limited text[], p_only text[], p_except text[]
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
        AND EXISTS (SELECT FROM {schema}.open_kinds(ARRAY[v_next.kind], ARRAY[p_route], p_limited, p_only, p_except))
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
