-- Attempts end, and their leases are extended.

-- Extends leases that are held, and returns for each whether it was. NULL where another transaction has locked the row:
-- it may end the attempt, or not.
CREATE FUNCTION {schema}.extend(p_seqs bigint[], p_fences uuid[], p_places bigint[], p_lease bigint)
RETURNS SETOF boolean LANGUAGE plpgsql SET jit = off SET enable_seqscan = off SET lock_timeout = '400ms' AS $tower_webhook$
DECLARE
    v_seq bigint;
    v_fence uuid;
    v_place bigint;
    v_row tid;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM {schema}.refuse_isolation(); END IF;
    -- A worker without room claims nothing.
    PERFORM {schema}.note_time({schema}.micros());
    FOR v_seq, v_fence, v_place IN SELECT * FROM unnest(p_seqs, p_fences, p_places) LOOP
        v_row := NULL;
        SELECT ctid INTO v_row FROM {schema}.head
        WHERE lane = v_place AND own = ANY (ARRAY[0, v_seq]) AND seq + 0 = v_seq AND fence = v_fence
        FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            UPDATE {schema}.head SET due = {schema}.micros() + p_lease WHERE ctid = v_row;
            RETURN NEXT true;
        ELSIF EXISTS (
            SELECT FROM {schema}.head
            WHERE lane = v_place AND own = ANY (ARRAY[0, v_seq]) AND seq + 0 = v_seq AND fence = v_fence
        ) THEN
            RETURN NEXT NULL;
        ELSE
            RETURN NEXT false;
        END IF;
    END LOOP;
END $tower_webhook$;

-- Notes that an event is discarded. Its body is deleted with the event.
CREATE FUNCTION {schema}.end_discarded(p_seq bigint, p_failures integer) RETURNS void
LANGUAGE plpgsql AS $tower_webhook$
BEGIN
    INSERT INTO {schema}.ended (seq, at, keep_until, failures, state)
    SELECT p_seq, {schema}.micros(), keep_until, p_failures, 'discarded' FROM {schema}.events WHERE seq = p_seq;
END $tower_webhook$;

-- Ends the attempt of a locked head in another way than `handled` and `ignored`. Returns whether the event leaves the
-- line.
CREATE FUNCTION {schema}.fail(
    v_head {schema}.head, p_end text, p_after bigint, p_outcome bytea, p_reason bytea, p_took bigint, p_shape bigint,
    p_uncounted bigint, p_blocks boolean, p_holds boolean
)
RETURNS boolean LANGUAGE plpgsql AS $tower_webhook$
DECLARE
    v_now bigint := {schema}.micros();
BEGIN
    IF p_end <> 'released' THEN v_head.crashes := 0; END IF;
    -- Of a snooze.
    IF p_end = 'retry' AND NOT v_head.is_tried AND v_head.failures = 0 THEN v_head.first_failed := NULL; END IF;
    IF p_outcome IS NOT NULL THEN
        v_head.is_tried := true;
        INSERT INTO {schema}.failures (seq, at, took, outcome, reason, shape)
        VALUES (v_head.seq, v_now, p_took, p_outcome, p_reason, p_shape);
        DELETE FROM {schema}.failures f WHERE f.seq = v_head.seq AND f.id <= (
            SELECT old.id FROM {schema}.failures old WHERE old.seq = v_head.seq ORDER BY old.id DESC OFFSET 100 LIMIT 1
        );
    END IF;

    IF p_end = 'released' THEN
        v_head.due := v_now;
    ELSIF p_end = 'retry' THEN
        IF p_uncounted = 0 THEN
            IF v_head.failures = 0 THEN v_head.first_failed := v_now; END IF;
            v_head.failures := least(v_head.failures, 2147483646) + 1;
        ELSIF p_outcome IS NOT NULL THEN
            -- A failure while attempts of the type are slowed down does not begin the time of its event.
            IF p_uncounted > 1 THEN v_head.first_failed := coalesce(v_head.first_failed, v_now); END IF;
            v_head.uncounted := least(v_head.uncounted + p_uncounted, 2000000000);
        ELSIF NOT v_head.is_tried THEN
            v_head.first_failed := coalesce(v_head.first_failed, v_now);
        END IF;
        v_head.due := v_now + p_after;
    ELSIF p_end = 'dead' THEN
        v_head.failures := least(v_head.failures, 2147483646) + 1;
        INSERT INTO {schema}.dead (seq, at, kind, failures) VALUES (v_head.seq, v_now, v_head.kind, v_head.failures);
        v_head.due := NULL;
    ELSE
        PERFORM {schema}.end_discarded(v_head.seq, v_head.failures);
    END IF;

    IF p_end = 'released'
        OR p_end = 'retry' AND (p_blocks OR v_head.own > 0)
        OR p_end = 'dead' AND p_holds AND v_head.own = 0
    THEN
        UPDATE {schema}.head SET
            due = v_head.due, failures = v_head.failures, uncounted = v_head.uncounted, crashes = v_head.crashes,
            is_tried = v_head.is_tried, is_suspect = v_head.crashes > 0, first_failed = v_head.first_failed, fence = NULL
        WHERE lane = v_head.lane AND own = v_head.own;
        IF v_head.own = 0 AND p_end <> 'dead' THEN PERFORM {schema}.sort_head(v_head.lane); END IF;
        RETURN false;
    END IF;
    IF p_end = 'retry' THEN
        INSERT INTO {schema}.aside (seq, lane, due, kind, failures, uncounted, crashes, is_tried, first_failed)
        VALUES (
            v_head.seq, v_head.lane, v_head.due, v_head.kind, v_head.failures, v_head.uncounted, v_head.crashes,
            v_head.is_tried, v_head.first_failed
        );
    END IF;
    RETURN true;
END $tower_webhook$;

-- The arrays have an element for each attempt, in the order of lanes, but for those that no failure needs. `p_ends`
-- are `released`, `retry`, or the state that follows. `p_uncounted` is 0 for a failure that counts. Next events are taken
-- with `p_leases` at `p_routes`. The rows of the result have positions in the arrays, and the next event of the lane, if it
-- was taken.
CREATE FUNCTION {schema}.settle(
    p_seqs bigint[], p_fences uuid[], p_places bigint[], p_ends text[], p_afters bigint[], p_uncounted bigint[],
    p_blocks boolean[], p_holds boolean[], p_leases bigint[], p_routes text[], p_limited text[], p_only text[],
    p_except text[], p_outcomes bytea[], p_reasons bytea[], p_took bigint[],
    p_shapes bigint[]
)
RETURNS TABLE (
    o_at bigint, o_is_held boolean,
    o_seq bigint, o_fence uuid, o_place bigint, o_is_in_lane boolean, o_route text, o_kind text, o_key bytea,
    o_body bytea, o_headers bytea, o_accepted bigint, o_is_redriven boolean, o_failures integer, o_crashes integer,
    o_tried_for bigint, o_uncounted integer, o_delivery bigint, o_item integer, o_items integer, o_kept bytea
) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $tower_webhook$
DECLARE
    v_now bigint := {schema}.micros();
    v_done bigint[];
    v_lanes bigint[];
    v_places tid[];
    v_others bigint[];
    v_last tid[];
    v_moving bigint[] := '{}';
    v_head {schema}.head%ROWTYPE;
    v_own bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM {schema}.refuse_isolation(); END IF;
    -- All of them are locked at once, and so in the order of lanes.
    WITH held AS MATERIALIZED (
        SELECT e.at, e.seq, e."end", e."end" IN ('handled', 'ignored') AS is_done, h.*
        FROM unnest(p_seqs, p_fences, p_places, p_ends) WITH ORDINALITY AS e (seq, fence, lane, "end", at)
        CROSS JOIN LATERAL (
            SELECT h.ctid AS place, CASE h.own WHEN 0 THEN h.lane END AS lane, h.failures FROM {schema}.head h
            WHERE h.lane = e.lane AND h.own = ANY (ARRAY[0, e.seq]) AND h.seq + 0 = e.seq AND h.fence = e.fence
            FOR UPDATE
        ) AS h
    ), ended AS (
        INSERT INTO {schema}.ended (seq, at, failures, state)
        SELECT seq, v_now, failures, "end"::{schema}.event_state FROM held WHERE is_done
    )
    SELECT
        ARRAY(SELECT at FROM held WHERE is_done), ARRAY(SELECT lane FROM held WHERE is_done),
        ARRAY(SELECT place FROM held WHERE is_done), ARRAY(SELECT at FROM held WHERE NOT is_done)
    INTO v_done, v_lanes, v_places, v_others;
    -- An event that returns to its lane may be the next one.
    IF EXISTS (SELECT FROM {schema}.aside a WHERE a.due <= v_now) THEN
        PERFORM {schema}.rejoin_lane(p_places[e.at]) FROM unnest(v_done || v_others) AS e (at);
    END IF;
    -- Since they are locked, nobody else adds an event behind them.
    v_last := ARRAY(
        SELECT e.place FROM unnest(v_places, v_lanes) AS e (place, lane)
        WHERE (SELECT true FROM {schema}.wait w WHERE w.lane = e.lane LIMIT 1) IS NULL
    );
    DELETE FROM {schema}.head WHERE ctid = ANY (v_last);
    IF cardinality(v_last) < cardinality(v_done) THEN
        v_moving := ARRAY(SELECT e.at FROM unnest(v_done, v_places) AS e (at, place) WHERE e.place <> ALL (v_last));
    END IF;
    v_others := v_others || v_moving;
    RETURN QUERY
    SELECT
        e.at, e.at = ANY (v_done), NULL::bigint, NULL::uuid, NULL::bigint, NULL::boolean, NULL::text, NULL::text,
        NULL::bytea, NULL::bytea, NULL::bytea, NULL::bigint, NULL::boolean, NULL::integer, NULL::integer,
        NULL::bigint, NULL::integer, NULL::bigint, NULL::integer, NULL::integer, NULL::bytea
    FROM generate_series(1, cardinality(p_seqs)::bigint) AS e (at) WHERE e.at <> ALL (v_others);

    FOREACH o_at IN ARRAY v_others LOOP
        o_seq := NULL;
        o_is_held := true;
        v_own := 0;
        IF p_ends[o_at] NOT IN ('handled', 'ignored') THEN
            SELECT * INTO v_head FROM {schema}.head
            WHERE lane = p_places[o_at] AND own = ANY (ARRAY[0, p_seqs[o_at]]) AND seq + 0 = p_seqs[o_at]
                AND fence = p_fences[o_at];
            -- The same attempt may have an end before this one in the arrays.
            o_is_held := FOUND;
            IF NOT FOUND OR NOT {schema}.fail(
                v_head, p_ends[o_at], p_afters[o_at], p_outcomes[o_at], p_reasons[o_at], p_took[o_at], p_shapes[o_at],
                p_uncounted[o_at], p_blocks[o_at], p_holds[o_at]
            ) THEN
                RETURN NEXT;
                CONTINUE;
            END IF;
            v_own := v_head.own;
        END IF;
        -- As for an acceptance, nothing is taken late.
        IF {schema}.micros() - v_now > 1000000 THEN p_leases[o_at] := NULL; END IF;
        v_head := {schema}.advance(
            p_places[o_at], v_own, p_leases[o_at], p_routes[o_at], p_limited, p_only, p_except
        );
        IF v_head.seq IS NOT NULL THEN
            SELECT v_head.seq, v_head.fence, v_head.lane, true, k.route, k.name, e.key, e.body, e.headers,
                e.accepted, e.is_redriven, v_head.failures, v_head.crashes,
                CASE WHEN v_head.is_tried OR v_head.failures > 0 THEN v_now - v_head.first_failed END, v_head.uncounted,
                e.delivery, e.item, e.items, e.kept
            INTO o_seq, o_fence, o_place, o_is_in_lane, o_route, o_kind, o_key, o_body, o_headers, o_accepted,
                o_is_redriven, o_failures, o_crashes, o_tried_for, o_uncounted, o_delivery, o_item, o_items, o_kept
            FROM {schema}.events e, {schema}.kinds k WHERE e.seq = v_head.seq AND k.id = e.kind;
        END IF;
        RETURN NEXT;
    END LOOP;
END $tower_webhook$;
