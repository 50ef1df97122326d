-- Version 6: claims that need not read deleted rows again, which stay as long as an old transaction of anybody does,
-- and lists of a large backlog.

-- In the order of the lists: all that wait behind others, and those of them that have failed, which are few. New
-- numbers are the largest ones, so they split no full page.
ALTER INDEX {schema}.events_pkey SET (fillfactor = 100);
CREATE INDEX wait_seq ON {schema}.wait (seq) WITH (fillfactor = 100);
CREATE INDEX wait_failed ON {schema}.wait (seq) WHERE is_tried OR crashes > 0;

-- As in version 3, but an event that waited behind others is due when it becomes the first one: it could not be taken
-- before, and a claim does not look back for long.
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

-- As in version 3, with the headers, and with a floor: of the kinds in `p_kinds`, no event that has never crashed is
-- due before `p_ready`, and no crashed one before `p_crashed`; and no lease of the same duration ends between now and
-- `p_leased`. The last row has no number, and contains the next floor: kinds, the three times, and how long the claim
-- took. Only a floor of zeros finds every event: a few become due in the past, as one that waited for the attempt of a
-- later one of its lane. So the caller has to claim without a floor from time to time.
CREATE FUNCTION {schema}.claim(
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
        DELETE FROM {schema}.aside WHERE seq = v_aside.seq;
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
                IF v_head.own = 0 AND EXISTS (
                    SELECT FROM {schema}.wait w WHERE w.lane = v_head.lane AND w.seq < v_head.seq
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

-- As in version 5. If no other event of the lane has failed, the head is used without looking for the first event: that
-- look-up takes more time than all the rest.
CREATE OR REPLACE FUNCTION {schema}.blocked(p_now bigint, p_lane bigint)
RETURNS TABLE (
    o_lane bigint, o_seq bigint, o_kind integer, o_state integer, o_due bigint, o_failures integer,
    o_first_failed bigint
)
LANGUAGE sql STABLE
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
    SET jit = off
AS $tower_webhook$
    WITH others AS MATERIALIZED (
        SELECT w.lane FROM {schema}.wait w WHERE (w.is_tried OR w.crashes > 0) AND p_lane IS NULL
        UNION
        SELECT a.lane FROM {schema}.aside a WHERE a.due <= p_now AND p_lane IS NULL
        UNION
        SELECT p_lane WHERE p_lane IS NOT NULL
    ), heads AS (
        SELECT h.* FROM {schema}.head h WHERE h.is_tried AND h.own = 0 AND p_lane IS NULL
        UNION ALL
        SELECT h.* FROM {schema}.kinds k JOIN {schema}.head h ON h.kind = k.id
        WHERE h.is_suspect AND NOT h.is_tried AND h.own = 0 AND (h.crashes > 0 OR h.due <= p_now) AND p_lane IS NULL
    ), firsts AS (
        SELECT
            h.lane, h.seq, h.kind, h.due, h.failures, h.first_failed,
            CASE
                WHEN h.due = 9223372036854775807 THEN 6
                WHEN h.fence IS NOT NULL AND h.due > p_now THEN 1
                ELSE 2
            END AS state
        FROM heads h WHERE h.lane NOT IN (SELECT o.lane FROM others o)
        UNION ALL
        SELECT o.lane, f.seq, f.kind, f.due, f.failures, f.first_failed, f.state
        FROM others o CROSS JOIN LATERAL (
            SELECT * FROM (
                SELECT
                    h.seq, h.kind, h.due, h.failures, h.first_failed,
                    CASE
                        WHEN h.due = 9223372036854775807 THEN 6
                        WHEN h.fence IS NOT NULL AND h.due > p_now THEN 1
                        ELSE 2
                    END AS state,
                    h.is_tried OR h.crashes > 0 OR h.fence IS NOT NULL AND h.due <= p_now AS has_failed
                FROM {schema}.head h WHERE h.lane = o.lane AND h.own = 0
                UNION ALL
                (
                    SELECT w.seq, w.kind, w.due, w.failures, w.first_failed, 2, w.is_tried OR w.crashes > 0
                    FROM {schema}.wait w WHERE w.lane = o.lane ORDER BY w.lane, w.seq LIMIT 1
                )
                UNION ALL
                (
                    SELECT a.seq, a.kind, a.due, a.failures, a.first_failed, 2, a.is_tried OR a.crashes > 0
                    FROM {schema}.aside a WHERE a.lane = o.lane AND a.due <= p_now ORDER BY a.seq LIMIT 1
                )
            ) AS line
            ORDER BY line.state = 2, line.seq LIMIT 1
        ) AS f
        WHERE f.has_failed
    )
    SELECT
        f.lane, f.seq, f.kind, f.state, CASE WHEN f.state = 2 AND f.due > p_now THEN f.due END, f.failures,
        f.first_failed
    FROM firsts f
$tower_webhook$;
