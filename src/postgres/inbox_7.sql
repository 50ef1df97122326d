-- Version 7: statements whose plans do not depend on statistics.
--
-- `head` and `wait` are often empty when statistics are made, and may have hundreds of thousands of deleted rows at
-- that time, which stay as long as an old transaction of anybody does. Then the planner takes every index for one of a
-- single page, and may choose one that it has to read as a whole: for an attempt, `head_due` by the number of the event;
-- for the first event of a lane, `wait_seq`; for lanes without a waiting event, `wait_pkey` without the lane. So these
-- statements have conditions of which only good indexes make use:
--
-- - `seq + 0 = …` and `due <> …`, as no index has the expression or knows the operator;
-- - `lane BETWEEN … AND …`, since an order by lane and number is that of `wait_seq`, too, if there is only one lane;
-- - the due time beside the number of an event that was put aside;
-- - a subquery with `LIMIT`, which is not made a join with all rows.
--
-- Otherwise, the functions are those of versions 3 to 6.

CREATE OR REPLACE FUNCTION {schema}.extend(p_seq bigint, p_fence uuid, p_place bigint, p_lease bigint)
RETURNS boolean
LANGUAGE plpgsql
    SET enable_seqscan = off
AS $tower_webhook$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM {schema}.refuse_isolation();
    END IF;
    UPDATE {schema}.head SET due = {schema}.micros() + p_lease
    WHERE lane = p_place AND own = ANY (ARRAY[0, p_seq]) AND seq + 0 = p_seq AND fence = p_fence;
    RETURN FOUND;
END $tower_webhook$;

CREATE OR REPLACE FUNCTION {schema}.sort_head(p_lane bigint) RETURNS void LANGUAGE plpgsql AS $tower_webhook$
DECLARE
    v_head {schema}.head%ROWTYPE;
    v_next {schema}.wait%ROWTYPE;
BEGIN
    SELECT * INTO v_head FROM {schema}.head WHERE lane = p_lane AND own = 0;
    SELECT * INTO v_next FROM {schema}.wait WHERE lane BETWEEN p_lane AND p_lane ORDER BY lane, seq LIMIT 1;
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

CREATE OR REPLACE FUNCTION {schema}.advance(
    p_lane bigint, p_own bigint, p_lease bigint, p_only text[], p_except text[]
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
    DELETE FROM {schema}.wait WHERE lane = p_lane AND seq = v_next.seq;
    IF p_lease IS NOT NULL
        AND v_next.due <= {schema}.micros()
        AND {schema}.is_open(v_next.kind, p_only, p_except)
    THEN
        v_fence := gen_random_uuid();
        v_next.due := {schema}.micros() + p_lease;
    ELSE
        -- Of events that one statement lets advance, the order is that of their numbers.
        v_next.due := greatest(v_next.due, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint);
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

CREATE OR REPLACE FUNCTION {schema}.rejoin(p_event {schema}.aside) RETURNS void LANGUAGE plpgsql AS $tower_webhook$
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
            WHERE lane = p_event.lane AND own = 0 AND fence IS NULL AND due <> 9223372036854775807
        ) THEN
            PERFORM {schema}.sort_head(p_event.lane);
        END IF;
    END IF;
END $tower_webhook$;

CREATE OR REPLACE FUNCTION {schema}.settle(
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
    WHERE lane = p_place AND own = ANY (ARRAY[0, p_seq]) AND seq + 0 = p_seq AND fence = p_fence
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

CREATE OR REPLACE FUNCTION {schema}.settle_all(
    p_seqs bigint[], p_fences uuid[], p_places bigint[], p_actions bigint[], p_afters bigint[], p_outcomes bytea[],
    p_reasons bytea[], p_counts boolean[], p_blocks boolean[], p_holds boolean[], p_leases bigint[],
    p_only text[], p_except text[]
)
RETURNS TABLE (
    o_at bigint, o_is_held boolean,
    o_seq bigint, o_fence uuid, o_place bigint, o_is_in_lane boolean, o_kind text, o_key bytea,
    o_body bytea, o_accepted bigint, o_is_redriven boolean, o_failures integer,
    o_crashes integer, o_tried_for bigint
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
    v_is_fast boolean := true;
    v_at bigint[];
    v_lanes bigint[];
    v_places tid[];
    v_last tid[];
    v_moving bigint[];
    v_next {schema}.head%ROWTYPE;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM {schema}.refuse_isolation();
    END IF;
    IF EXISTS (SELECT FROM {schema}.aside a WHERE a.due <= v_now) THEN
        v_is_fast := NOT EXISTS (
            SELECT FROM unnest(p_places) AS e (lane)
            CROSS JOIN LATERAL (SELECT FROM {schema}.aside a WHERE a.lane = e.lane AND a.due <= v_now LIMIT 1) AS due
        );
    END IF;

    IF v_is_fast THEN
        -- All of them are locked, so that those that are left to `settle` are locked in the same order.
        WITH held AS MATERIALIZED (
            SELECT e.at, e.seq, e.action, h.*
            FROM unnest(p_seqs, p_fences, p_places, p_actions) WITH ORDINALITY AS e (seq, fence, lane, action, at)
            CROSS JOIN LATERAL (
                SELECT h.ctid AS place, CASE h.own WHEN 0 THEN h.lane END AS lane, h.failures FROM {schema}.head h
                WHERE h.lane = e.lane AND h.own = ANY (ARRAY[0, e.seq]) AND h.seq + 0 = e.seq AND h.fence = e.fence
                FOR UPDATE
            ) AS h
        ), ended AS (
            INSERT INTO {schema}.ended (seq, at, failures, state, has_body)
            SELECT seq, v_now, failures, action, true FROM held WHERE action IN (3, 4)
        )
        SELECT
            ARRAY(SELECT at FROM held WHERE action IN (3, 4)),
            ARRAY(SELECT lane FROM held WHERE action IN (3, 4)),
            ARRAY(SELECT place FROM held WHERE action IN (3, 4))
        INTO v_at, v_lanes, v_places;
        -- Since they are locked, nobody else adds an event behind them.
        v_last := ARRAY(
            SELECT e.place FROM unnest(v_places, v_lanes) AS e (place, lane)
            WHERE (SELECT true FROM {schema}.wait w WHERE w.lane = e.lane LIMIT 1) IS NULL
        );
        DELETE FROM {schema}.head WHERE ctid = ANY (v_last);
        IF cardinality(v_last) < cardinality(v_at) THEN
            v_moving := ARRAY(
                SELECT e.at FROM unnest(v_at, v_places) AS e (at, place) WHERE e.place <> ALL (v_last)
            );
        END IF;
        RETURN QUERY
        SELECT
            e.at, (e.at = ANY (v_at)) IS TRUE, NULL::bigint, NULL::uuid, NULL::bigint, NULL::boolean, NULL::text,
            NULL::bytea, NULL::bytea, NULL::bigint, NULL::boolean, NULL::integer, NULL::integer, NULL::bigint
        FROM unnest(p_actions) WITH ORDINALITY AS e (action, at)
        WHERE e.action IN (3, 4) AND (e.at = ANY (v_moving)) IS NOT TRUE;
        FOREACH o_at IN ARRAY coalesce(v_moving, '{}') LOOP
            v_next := {schema}.advance(p_places[o_at], 0, p_leases[o_at], p_only, p_except);
            o_is_held := true;
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
            RETURN NEXT;
        END LOOP;
    END IF;

    IF NOT v_is_fast OR NOT p_actions <@ '{3, 4}' THEN
        RETURN QUERY
        SELECT e.at, s.*
        FROM unnest(
            p_seqs, p_fences, p_places, p_actions, p_afters, p_outcomes, p_reasons, p_counts, p_blocks, p_holds,
            p_leases
        ) WITH ORDINALITY
            AS e (seq, fence, place, action, after, outcome, reason, counts, blocks, holds, lease, at)
        CROSS JOIN LATERAL {schema}.settle(
            e.seq, e.fence, e.place, e.action::integer, e.after, e.outcome, e.reason, e.counts, e.blocks, e.holds,
            e.lease, p_only, p_except
        ) AS s
        WHERE NOT v_is_fast OR e.action NOT IN (3, 4);
    END IF;
END $tower_webhook$;

CREATE OR REPLACE FUNCTION {schema}.claim(
    p_lease bigint, p_only text[], p_except text[], p_limit bigint, p_suspects bigint,
    p_kinds bigint[], p_ready bigint, p_crashed bigint, p_leased bigint
)
RETURNS TABLE (
    o_seq bigint, o_fence uuid, o_place bigint, o_is_in_lane boolean, o_kind text, o_key bytea, o_body bytea,
    o_accepted bigint, o_is_redriven boolean, o_failures integer, o_crashes integer, o_tried_for bigint,
    o_headers bytea, o_kinds bigint[], o_ready bigint, o_crashed bigint, o_leased bigint, o_took bigint
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
    -- Transactions that began this long before they commit are seen in spite of a floor.
    c_slack CONSTANT bigint := 3000000;
    v_now bigint := {schema}.micros();
    v_kinds integer[];
    v_is_whole boolean;
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
        DELETE FROM {schema}.aside WHERE due = v_aside.due AND seq = v_aside.seq;
        PERFORM {schema}.rejoin(v_aside);
        v_returned := v_returned + 1;
        p_ready := least(p_ready, v_aside.due);
        p_crashed := least(p_crashed, v_aside.due);
    END LOOP;
    v_kinds := ARRAY(
        SELECT k.id FROM {schema}.kinds k WHERE k.is_seen AND {schema}.is_open(k.id, p_only, p_except) ORDER BY k.id
    );
    -- The clock may have been set back.
    IF v_kinds::bigint[] <> p_kinds OR greatest(p_ready, p_crashed) > v_now THEN
        p_ready := 0;
        p_crashed := 0;
        p_leased := 0;
    END IF;
    v_is_whole := p_ready = 0;
    IF v_returned = 100 THEN
        v_next := v_now;
    ELSE
        SELECT a.due INTO v_next FROM {schema}.aside a
        WHERE a.due > v_now AND a.kind = ANY (v_kinds) ORDER BY a.due, a.seq LIMIT 1;
    END IF;
    -- What is in progress elsewhere is due when its lease expires.
    SELECT min(leased.due) INTO o_leased
    FROM unnest(v_kinds) AS o (kind)
    CROSS JOIN LATERAL (
        SELECT h.due FROM {schema}.head h
        WHERE h.kind = o.kind AND h.is_suspect AND h.due > greatest(v_now, p_leased - 1)
        ORDER BY h.due, h.seq LIMIT 1
    ) AS leased;
    v_next := least(v_next, o_leased);

    LOOP
        v_again := false;
        v_left := p_limit - v_taken;
        FOR v_head IN
            WITH clean AS MATERIALIZED (
                SELECT found.* FROM unnest(v_kinds) AS o (kind)
                CROSS JOIN LATERAL (
                    SELECT h.* FROM {schema}.head h
                    WHERE h.kind = o.kind AND NOT h.is_suspect AND h.due >= p_ready AND h.due <= v_now
                    ORDER BY h.due, h.seq LIMIT v_left
                    FOR UPDATE SKIP LOCKED
                ) AS found
            ), suspect AS MATERIALIZED (
                SELECT found.* FROM unnest(v_kinds) AS o (kind)
                CROSS JOIN LATERAL (
                    SELECT h.* FROM {schema}.head h
                    WHERE h.kind = o.kind AND h.is_suspect AND h.due >= p_crashed AND h.due <= v_now
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
                IF v_head.own = 0 AND v_head.seq > (
                    SELECT w.seq FROM {schema}.wait w
                    WHERE w.lane BETWEEN v_head.lane AND v_head.lane ORDER BY w.lane, w.seq LIMIT 1
                ) THEN
                    UPDATE {schema}.head h SET crashes = v_head.crashes, fence = NULL
                    WHERE h.lane = v_head.lane AND h.own = 0;
                    PERFORM {schema}.sort_head(v_head.lane);
                    -- The other one may have been due for long.
                    p_ready := 0;
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
            SELECT k.name, e.key, e.body, e.accepted, e.is_redriven, e.headers
            INTO o_kind, o_key, o_body, o_accepted, o_is_redriven, o_headers
            FROM {schema}.events e, {schema}.kinds k WHERE e.seq = v_head.seq AND k.id = e.kind;
            RETURN NEXT;
        END LOOP;
        EXIT WHEN NOT v_again;
    END LOOP;

    SELECT min(ready.due) INTO o_ready
    FROM unnest(v_kinds) AS o (kind)
    CROSS JOIN LATERAL (
        SELECT h.due FROM {schema}.head h
        WHERE h.kind = o.kind AND NOT h.is_suspect AND h.due >= p_ready AND h.due < 9223372036854775807
        ORDER BY h.due, h.seq LIMIT 1
    ) AS ready;
    v_next := least(v_next, o_ready);
    IF p_suspects > 0 OR v_is_whole THEN
        SELECT min(crashed.due) INTO o_crashed
        FROM unnest(v_kinds) AS o (kind)
        CROSS JOIN LATERAL (
            SELECT h.due FROM {schema}.head h
            WHERE h.kind = o.kind AND h.is_suspect AND h.due >= p_crashed AND h.due <= v_now
            ORDER BY h.due, h.seq LIMIT 1
        ) AS crashed;
        IF v_suspects > 0 THEN
            v_next := least(v_next, o_crashed);
        END IF;
        o_crashed := least(o_crashed, v_now - c_slack);
    ELSE
        o_crashed := p_crashed;
    END IF;
    o_seq := NULL;
    o_body := NULL;
    o_headers := NULL;
    o_tried_for := greatest(v_next - v_now, 0);
    IF v_next IS NULL THEN
        o_tried_for := NULL;
    END IF;
    o_kinds := v_kinds;
    o_ready := least(o_ready, v_now - c_slack);
    o_leased := least(o_leased, v_now - c_slack + p_lease);
    o_took := {schema}.micros() - v_now;
    RETURN NEXT;
END $tower_webhook$;

CREATE OR REPLACE FUNCTION {schema}.rejoin_lane(p_lane bigint) RETURNS void LANGUAGE plpgsql AS $tower_webhook$
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

CREATE OR REPLACE FUNCTION {schema}.redrive(p_seq bigint) RETURNS integer
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
                SELECT FROM {schema}.head WHERE lane = v_event.lane AND own = 0 AND seq + 0 = p_seq
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

CREATE OR REPLACE FUNCTION {schema}.discard(p_seq bigint) RETURNS integer
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
                SELECT FROM {schema}.head WHERE lane = v_event.lane AND own = 0 AND seq + 0 = p_seq
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

CREATE OR REPLACE FUNCTION {schema}.lock_state(p_seq bigint) RETURNS integer
LANGUAGE plpgsql
    SET enable_seqscan = off
AS $tower_webhook$
DECLARE
    v_lane bigint;
    v_state integer;
    v_head {schema}.head%ROWTYPE;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM {schema}.refuse_isolation();
    END IF;
    FOR round IN 1..100 LOOP
        SELECT lane INTO v_lane FROM {schema}.events WHERE seq = p_seq;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;

        SELECT CASE WHEN is_tried OR crashes > 0 THEN 2 ELSE 0 END INTO v_state
        FROM {schema}.aside WHERE seq = p_seq FOR UPDATE;
        IF FOUND THEN
            RETURN v_state;
        END IF;

        SELECT * INTO v_head FROM {schema}.head
        WHERE lane = coalesce(v_lane, 0) AND own = CASE WHEN v_lane IS NULL THEN p_seq ELSE 0 END
        FOR UPDATE;
        IF FOUND AND v_head.seq = p_seq THEN
            RETURN CASE
                WHEN v_head.due = 9223372036854775807 THEN 6
                WHEN v_head.fence IS NOT NULL AND v_head.due > {schema}.micros() THEN 1
                WHEN v_head.is_tried OR v_head.crashes > 0 OR v_head.fence IS NOT NULL THEN 2
                ELSE 0
            END;
        END IF;
        IF FOUND THEN
            SELECT CASE WHEN is_tried OR crashes > 0 THEN 2 ELSE 0 END INTO v_state
            FROM {schema}.wait WHERE lane = v_lane AND seq = p_seq;
            IF FOUND THEN
                RETURN v_state;
            END IF;
        END IF;

        SELECT state INTO v_state FROM {schema}.ended WHERE seq = p_seq FOR UPDATE;
        IF FOUND THEN
            RETURN v_state;
        END IF;
        PERFORM FROM {schema}.dead WHERE seq = p_seq FOR UPDATE;
        -- It may have become one that holds its lane since the head was looked at.
        IF FOUND AND NOT EXISTS (
            SELECT FROM {schema}.head WHERE lane = v_lane AND own = 0 AND seq + 0 = p_seq
        ) THEN
            RETURN 6;
        END IF;
    END LOOP;
    RAISE EXCEPTION 'event % is nowhere', p_seq USING ERRCODE = 'XX001';
END $tower_webhook$;
