-- A person redrives and discards events.

-- The state of an event that is not settled, by its row. Planned as a part of the statement that calls it.
CREATE FUNCTION {schema}.state_of(p_is_tried boolean, p_crashes integer, p_fence uuid, p_due bigint, p_now bigint)
RETURNS {schema}.event_state LANGUAGE sql IMMUTABLE AS $tower_webhook$
    SELECT CASE
        WHEN p_due IS NULL THEN 'dead'::{schema}.event_state
        WHEN p_fence IS NOT NULL AND p_due > p_now THEN 'in-progress'::{schema}.event_state
        WHEN p_is_tried OR p_crashes > 0 OR p_fence IS NOT NULL THEN 'retrying'::{schema}.event_state
        ELSE 'waiting'::{schema}.event_state
    END
$tower_webhook$;

-- Finds an event, whose table and state do not change before the transaction ends, except by a lease that expires. The
-- state is NULL if there is no such event. One that moves between the look-ups is looked up again.
CREATE FUNCTION {schema}.lock_event(
    p_seq bigint, OUT o_table text, OUT o_state {schema}.event_state, OUT o_lane bigint, OUT o_own bigint
) LANGUAGE plpgsql SET jit = off SET enable_seqscan = off AS $tower_webhook$
DECLARE
    v_seq bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM {schema}.refuse_isolation(); END IF;
    FOR round IN 1..100 LOOP
        SELECT coalesce(lane, 0), CASE WHEN lane IS NULL THEN seq ELSE 0 END INTO o_lane, o_own
        FROM {schema}.events WHERE seq = p_seq;
        IF NOT FOUND THEN
            -- Purged since the last look.
            o_state := NULL;
            RETURN;
        END IF;

        o_table := 'aside';
        SELECT {schema}.state_of(is_tried, crashes, NULL, due, 0) INTO o_state
        FROM {schema}.aside WHERE seq = p_seq FOR UPDATE;
        IF FOUND THEN RETURN; END IF;

        o_table := 'head';
        SELECT seq, {schema}.state_of(is_tried, crashes, fence, due, {schema}.micros()) INTO v_seq, o_state
        FROM {schema}.head WHERE lane = o_lane AND own = o_own FOR UPDATE;
        IF v_seq = p_seq THEN RETURN; END IF;
        IF FOUND THEN
            o_table := 'wait';
            SELECT {schema}.state_of(is_tried, crashes, NULL, due, 0) INTO o_state
            FROM {schema}.wait WHERE lane = o_lane AND seq = p_seq;
            IF FOUND THEN RETURN; END IF;
        END IF;

        o_table := 'ended';
        SELECT state INTO o_state FROM {schema}.ended WHERE seq = p_seq FOR UPDATE;
        IF FOUND THEN RETURN; END IF;
        o_table := 'dead';
        o_state := 'dead';
        PERFORM FROM {schema}.dead WHERE seq = p_seq FOR UPDATE;
        -- It may have become one that holds its lane since the head was looked at.
        IF FOUND AND NOT EXISTS (
            SELECT FROM {schema}.head WHERE lane = o_lane AND own = 0 AND seq + 0 = p_seq
        ) THEN
            RETURN;
        END IF;
    END LOOP;
    RAISE EXCEPTION 'event % is nowhere', p_seq USING ERRCODE = 'XX001';
END $tower_webhook$;

-- Makes an event due now, if it is in a state, or without one, in any but `in-progress`.
CREATE FUNCTION {schema}.redrive(p_seq bigint, p_from {schema}.event_state) RETURNS text
LANGUAGE plpgsql SET jit = off SET enable_seqscan = off AS $tower_webhook$
DECLARE
    v_now bigint;
    v_at record;
    v_aside {schema}.aside%ROWTYPE;
BEGIN
    SELECT * INTO v_at FROM {schema}.lock_event(p_seq);
    v_now := {schema}.micros();
    IF v_at.o_state IS NULL THEN
        RETURN 'not-found';
    ELSIF v_at.o_state <> p_from THEN
        RETURN 'wrong-state';
    -- What deletes the body has locked the row of `ended`.
    ELSIF (SELECT body IS NULL FROM {schema}.events WHERE seq = p_seq) THEN
        RETURN 'without-body';
    ELSIF v_at.o_state = 'in-progress' THEN
        RETURN 'wrong-state';
    END IF;

    IF v_at.o_table = 'aside' THEN
        DELETE FROM {schema}.aside WHERE seq = p_seq RETURNING * INTO v_aside;
        v_aside.due := v_now;
        PERFORM {schema}.rejoin(v_aside);
    ELSIF v_at.o_table = 'wait' THEN
        UPDATE {schema}.wait SET due = v_now WHERE lane = v_at.o_lane AND seq = p_seq;
    ELSIF v_at.o_table = 'head' THEN
        IF v_at.o_state = 'dead' THEN
            DELETE FROM {schema}.dead WHERE seq = p_seq;
            UPDATE {schema}.events SET is_redriven = true WHERE seq = p_seq;
            UPDATE {schema}.head SET failures = 0, uncounted = 0, crashes = 0, first_failed = NULL
            WHERE lane = v_at.o_lane AND own = v_at.o_own;
        END IF;
        -- The lease of one with a fence has expired, which is a crash.
        UPDATE {schema}.head SET
            due = v_now, crashes = crashes + (fence IS NOT NULL)::integer,
            is_suspect = crashes > 0 OR fence IS NOT NULL, fence = NULL
        WHERE lane = v_at.o_lane AND own = v_at.o_own;
        IF v_at.o_own = 0 THEN PERFORM {schema}.sort_head(v_at.o_lane); END IF;
    ELSE
        DELETE FROM {schema}.ended WHERE seq = p_seq;
        DELETE FROM {schema}.dead WHERE seq = p_seq;
        UPDATE {schema}.events SET lane = NULL, is_redriven = true WHERE seq = p_seq;
        INSERT INTO {schema}.head (lane, own, seq, due, kind, failures, crashes, is_tried, is_suspect)
        SELECT 0, p_seq, p_seq, v_now, kind, 0, 0, EXISTS (SELECT FROM {schema}.failures WHERE seq = p_seq), false
        FROM {schema}.events WHERE seq = p_seq;
    END IF;
    RETURN 'made';
END $tower_webhook$;

-- Discards an event, if it is in a state, or without one, in any that is unsettled or dead.
CREATE FUNCTION {schema}.discard(p_seq bigint, p_from {schema}.event_state) RETURNS text
LANGUAGE plpgsql SET jit = off SET enable_seqscan = off AS $tower_webhook$
DECLARE
    v_at record;
    v_failures integer;
BEGIN
    SELECT * INTO v_at FROM {schema}.lock_event(p_seq);
    IF v_at.o_state IS NULL THEN
        RETURN 'not-found';
    ELSIF v_at.o_table = 'ended' OR v_at.o_state <> p_from THEN
        RETURN 'wrong-state';
    ELSIF v_at.o_table = 'aside' THEN
        DELETE FROM {schema}.aside WHERE seq = p_seq RETURNING failures INTO v_failures;
    ELSIF v_at.o_table = 'wait' THEN
        DELETE FROM {schema}.wait WHERE lane = v_at.o_lane AND seq = p_seq RETURNING failures INTO v_failures;
    ELSIF v_at.o_table = 'head' THEN
        SELECT failures INTO v_failures FROM {schema}.head WHERE lane = v_at.o_lane AND own = v_at.o_own;
        DELETE FROM {schema}.dead WHERE seq = p_seq;
        PERFORM {schema}.advance(v_at.o_lane, v_at.o_own, NULL, NULL, NULL, NULL, NULL);
    ELSE
        DELETE FROM {schema}.dead WHERE seq = p_seq RETURNING failures INTO v_failures;
    END IF;
    PERFORM {schema}.end_discarded(p_seq, v_failures);
    RETURN 'made';
END $tower_webhook$;

-- Redrives or discards dead letters that hold no lane, and redrives what is first in its lane, as a person does with
-- thousands: all of them by each statement. Returns the positions of those in the arrays. It leaves out what others have
-- locked.
CREATE FUNCTION {schema}.change_many(p_seqs bigint[], p_froms text[], p_redrives boolean[])
RETURNS bigint[] LANGUAGE plpgsql SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $tower_webhook$
DECLARE
    v_now bigint := {schema}.micros();
    v_at bigint[];
    v_redriven bigint[];
    v_discarded bigint[];
    v_heads bigint[];
    v_places tid[];
    v_lanes bigint[];
    v_holding bigint[];
BEGIN
    SELECT array_agg(f.at), array_agg(f.seq) FILTER (WHERE p_redrives[f.at]),
        array_agg(f.seq) FILTER (WHERE NOT p_redrives[f.at])
    INTO v_at, v_redriven, v_discarded
    FROM (
        SELECT a.at, a.seq
        -- Another change of the same event comes after this one.
        FROM (SELECT seq, min(at) AS at FROM unnest(p_seqs) WITH ORDINALITY AS e (seq, at) GROUP BY seq) AS a
        JOIN {schema}.events e ON e.seq = a.seq
        JOIN {schema}.dead d ON d.seq = a.seq
        WHERE p_froms[a.at] IN ('', 'dead') AND (e.body IS NOT NULL OR NOT p_redrives[a.at])
            AND e.seq IS DISTINCT FROM (
                SELECT h.seq FROM {schema}.head h
                WHERE h.lane = coalesce(e.lane, 0) AND h.own = CASE WHEN e.lane IS NULL THEN e.seq ELSE 0 END
            )
        ORDER BY a.seq FOR UPDATE OF d SKIP LOCKED
    ) AS f;
    IF cardinality(p_seqs) > coalesce(cardinality(v_at), 0) THEN
        -- The heads of all lanes that are left, which the caller needs, too: in the order of lanes.
        WITH locked AS MATERIALIZED (
            SELECT a.at, a.seq, a.own, a.has_body, h.place, h.lane, h.seq AS first, h.fence, h.state
            FROM (
                SELECT c.at, c.seq, e.has_body, e.lane, e.own
                FROM (
                    SELECT c.seq, min(c.at) AS at FROM unnest(p_seqs) WITH ORDINALITY AS c (seq, at)
                    WHERE (c.at = ANY (v_at)) IS NOT TRUE GROUP BY c.seq
                ) AS c
                CROSS JOIN LATERAL (
                    SELECT e.body IS NOT NULL AS has_body, coalesce(e.lane, 0) AS lane,
                        CASE WHEN e.lane IS NULL THEN e.seq ELSE 0 END AS own
                    FROM {schema}.events e WHERE e.seq = c.seq LIMIT 1
                ) AS e
                ORDER BY e.lane, e.own, c.seq
            ) AS a
            CROSS JOIN LATERAL (
                SELECT h.ctid AS place, h.lane, h.seq, h.fence,
                    {schema}.state_of(h.is_tried, h.crashes, NULL, h.due, 0)::text AS state
                FROM {schema}.head h WHERE h.lane = a.lane AND h.own = a.own FOR UPDATE
            ) AS h
        )
        SELECT array_agg(l.at), array_agg(l.place), array_agg(l.lane) FILTER (WHERE l.own = 0),
            array_agg(l.seq) FILTER (WHERE l.state = 'dead')
        INTO v_heads, v_places, v_lanes, v_holding
        FROM locked l
        -- The lease of one with a fence may have expired, which is a crash.
        WHERE l.first = l.seq AND l.fence IS NULL AND l.has_body AND p_redrives[l.at] AND p_froms[l.at] IN ('', l.state);
        UPDATE {schema}.head SET
            due = v_now, failures = CASE WHEN due IS NULL THEN 0 ELSE failures END,
            uncounted = CASE WHEN due IS NULL THEN 0 ELSE uncounted END,
            crashes = CASE WHEN due IS NULL THEN 0 ELSE crashes END, is_suspect = due IS NOT NULL AND crashes > 0,
            first_failed = CASE WHEN due IS NULL THEN NULL ELSE first_failed END
        WHERE ctid = ANY (v_places);
        DELETE FROM {schema}.dead WHERE seq = ANY (v_holding);
        UPDATE {schema}.events SET is_redriven = true WHERE seq = ANY (v_holding);
        PERFORM {schema}.sort_head(e.lane) FROM unnest(v_lanes) AS e (lane)
        WHERE (SELECT true FROM {schema}.wait w WHERE w.lane = e.lane LIMIT 1);
    END IF;
    DELETE FROM {schema}.dead WHERE seq = ANY (v_redriven);
    UPDATE {schema}.events SET lane = NULL, is_redriven = true WHERE seq = ANY (v_redriven);
    INSERT INTO {schema}.head (lane, own, seq, due, kind, failures, crashes, is_tried, is_suspect)
    SELECT 0, seq, seq, v_now, kind, 0, 0, EXISTS (SELECT FROM {schema}.failures f WHERE f.seq = e.seq), false
    FROM {schema}.events e WHERE seq = ANY (v_redriven);
    WITH discarded AS (
        DELETE FROM {schema}.dead WHERE seq = ANY (v_discarded) RETURNING seq, failures
    )
    INSERT INTO {schema}.ended (seq, at, keep_until, failures, state)
    SELECT seq, v_now, e.keep_until, d.failures, 'discarded' FROM discarded d JOIN {schema}.events e USING (seq);
    RETURN v_at || v_heads;
END $tower_webhook$;

-- Redrives or discards each of these events, in the order of lanes, so that two statements do not wait for each other. The
-- rows of the result have positions in the arrays.
CREATE FUNCTION {schema}.change_each(p_seqs bigint[], p_froms text[], p_redrives boolean[])
RETURNS TABLE (o_at bigint, o_answer text) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET lock_timeout = '400ms' AS $tower_webhook$
DECLARE
    v_from {schema}.event_state;
    v_made bigint[];
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM {schema}.refuse_isolation(); END IF;
    v_made := {schema}.change_many(p_seqs, p_froms, p_redrives);
    RETURN QUERY SELECT made, 'made' FROM unnest(v_made) AS made;
    FOR o_at IN
        SELECT e.at FROM unnest(p_seqs) WITH ORDINALITY AS e (seq, at) WHERE (e.at = ANY (v_made)) IS NOT TRUE
        ORDER BY (SELECT coalesce(v.lane, 0) FROM {schema}.events v WHERE v.seq = e.seq), e.seq
    LOOP
        v_from := nullif(p_froms[o_at], '');
        IF p_redrives[o_at] THEN
            o_answer := {schema}.redrive(p_seqs[o_at], v_from);
        ELSE
            o_answer := {schema}.discard(p_seqs[o_at], v_from);
        END IF;
        RETURN NEXT;
    END LOOP;
END $tower_webhook$;

-- Records what a person did to events, one action for each.
CREATE FUNCTION {schema}.note(p_seqs bigint[], p_whats text[], p_whos text[], p_reasons text[]) RETURNS void
LANGUAGE sql AS $tower_webhook$
    WITH noted AS (
        INSERT INTO {schema}.actions (at, who, reason, what, event, changed)
        SELECT {schema}.micros(), who, reason, what, seq, 1
        FROM unnest(p_seqs, p_whats, p_whos, p_reasons) AS made (seq, what, who, reason)
        RETURNING event, number
    )
    INSERT INTO {schema}.changed (event, action) SELECT event, number FROM noted
$tower_webhook$;

-- As `change_each`, for persons who are named, and their reasons.
CREATE FUNCTION {schema}.change(
    p_seqs bigint[], p_froms text[], p_redrives boolean[], p_whos text[], p_reasons text[]
)
RETURNS TABLE (o_at bigint, o_answer text) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET lock_timeout = '400ms' AS $tower_webhook$
DECLARE
    v_made bigint[];
BEGIN
    FOR o_at, o_answer IN SELECT c.o_at, c.o_answer FROM {schema}.change_each(p_seqs, p_froms, p_redrives) AS c LOOP
        IF o_answer = 'made' THEN v_made := v_made || o_at; END IF;
        RETURN NEXT;
    END LOOP;
    IF v_made IS NULL THEN RETURN; END IF;
    PERFORM {schema}.note(
        array_agg(p_seqs[at]), array_agg(CASE WHEN p_redrives[at] THEN 'redrive' ELSE 'discard' END),
        array_agg(p_whos[at]), array_agg(p_reasons[at])
    ) FROM unnest(v_made) AS at;
END $tower_webhook$;

-- Changes the next events of a change of all that match, and moves it on, if it is running and at this position. Otherwise it
-- changes nothing. Returns whether it did.
CREATE FUNCTION {schema}.step_bulk(
    p_number bigint, p_from bigint, p_redrives bigint, p_seqs bigint[], p_froms text[], p_reached bigint, p_is_last bigint
)
RETURNS boolean LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET lock_timeout = '400ms' AS $tower_webhook$
DECLARE
    v_made bigint[];
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM {schema}.refuse_isolation(); END IF;
    -- The lock is that of the change: nobody cancels it or moves it on before this ends.
    PERFORM FROM {schema}.actions
    WHERE number = p_number AND state = 'running' AND reached = p_from FOR UPDATE;
    IF NOT FOUND THEN RETURN false; END IF;
    v_made := ARRAY(
        SELECT p_seqs[c.o_at]
        FROM {schema}.change_each(p_seqs, p_froms, array_fill(p_redrives > 0, ARRAY[cardinality(p_seqs)])) AS c
        WHERE c.o_answer = 'made'
    );
    INSERT INTO {schema}.changed (event, action) SELECT seq, p_number FROM unnest(v_made) AS seq;
    UPDATE {schema}.actions SET
        changed = changed + cardinality(v_made), skipped = skipped + cardinality(p_seqs) - cardinality(v_made),
        reached = p_reached, state = CASE WHEN p_is_last > 0 THEN 'done' ELSE state END, stepped = {schema}.micros()
    WHERE number = p_number;
    RETURN true;
END $tower_webhook$;
