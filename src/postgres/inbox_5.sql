-- Version 5: headers of events, durations of attempts, and what an operator asks for.
--
-- The functions of versions 3 and 4 stay, for processes of these versions. Those that are replaced here do the same as
-- before, and delete the headers with the body.

-- Both are NULL in every row of before, and take no room there.
ALTER TABLE {schema}.events ADD COLUMN headers bytea;
ALTER TABLE {schema}.failures ADD COLUMN took bigint;

-- The lanes whose first event has failed, or is a dead letter: few, however many lanes there are.
CREATE INDEX head_tried ON {schema}.head (lane) WHERE is_tried AND own = 0;

-- As in version 4, with the headers. Where no event has any, their array is empty.
CREATE FUNCTION {schema}.accept_all(
    p_keys uuid[], p_key_bodies uuid[], p_guards uuid[], p_guard_bodies uuid[],
    p_kinds text[], p_kind bigint[], p_raws bytea[], p_chats bytea[], p_lanes bigint[], p_bodies bytea[],
    p_retains bigint[], p_outcomes bytea[], p_reasons bytea[], p_leases bigint[], p_headers bytea[]
)
RETURNS TABLE (
    o_at bigint, o_answer smallint, o_same boolean, o_remaining bigint, o_seq bigint, o_accepted bigint, o_fence uuid
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
    v_count integer := cardinality(p_kind);
    v_is_fast boolean := true;
    v_kept integer;
    v_guarded integer := 0;
    v_is_paused boolean;
    v_kind text;
    v_id integer;
    v_is_open boolean;
    v_ids integer[];
    v_open boolean[];
    v_known uuid[];
    v_seqs bigint[];
    v_slow bigint[];
    v_lost bigint[];
    v_due bigint;
    -- What the fences of these events begin with. Their last 16 bits are the places.
    v_fence text := left(gen_random_uuid()::text, 32);
    v_heads bigint[];
    v_waiting bigint[];
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM {schema}.refuse_isolation();
    END IF;
    SELECT k.is_paused INTO v_is_paused FROM {schema}.kinds k WHERE k.name = '';
    FOREACH v_kind IN ARRAY p_kinds LOOP
        SELECT k.id, NOT (k.is_paused OR v_is_paused) INTO v_id, v_is_open
        FROM {schema}.kinds k WHERE k.name = v_kind AND k.is_seen;
        IF NOT FOUND THEN
            INSERT INTO {schema}.kinds AS k (name, is_seen, is_paused) VALUES (v_kind, true, false)
            ON CONFLICT (name) DO UPDATE SET is_seen = true
            RETURNING k.id, NOT (k.is_paused OR v_is_paused) INTO v_id, v_is_open;
        END IF;
        v_ids := v_ids || v_id;
        v_open := v_open || v_is_open;
    END LOOP;

    IF EXISTS (SELECT FROM {schema}.aside a WHERE a.due <= v_now) THEN
        v_is_fast := NOT EXISTS (
            SELECT FROM unnest(p_lanes) AS e (lane)
            CROSS JOIN LATERAL (SELECT FROM {schema}.aside a WHERE a.lane = e.lane AND a.due <= v_now LIMIT 1) AS due
        );
    END IF;

    IF v_is_fast THEN
        v_known := ARRAY(SELECT k.key FROM {schema}.keys k WHERE k.key = ANY (p_keys || p_guards));
        IF cardinality(v_known) > 0 OR cardinality(array_remove(p_outcomes, NULL)) > 0 THEN
            v_slow := ARRAY(
                SELECT e.at FROM unnest(p_keys, p_guards, p_outcomes) WITH ORDINALITY AS e (key, guard, outcome, at)
                WHERE e.outcome IS NOT NULL OR e.key = ANY (v_known) OR e.guard = ANY (v_known)
            );
        END IF;
        v_seqs := ARRAY(
            SELECT CASE WHEN v_slow IS NULL OR e.at <> ALL (v_slow) THEN nextval($tower_webhook_name${schema}.events_seq_seq$tower_webhook_name$) END
            FROM generate_series(1, v_count) AS e (at)
        );
        INSERT INTO {schema}.keys (key, body, done_until, old_body, event)
        SELECT e.key, e.body, timestamptz 'epoch' + (v_now + e.retain) * interval '1 microsecond', NULL, e.seq
        FROM unnest(p_keys, p_key_bodies, p_retains, v_seqs) WITH ORDINALITY AS e (key, body, retain, seq, at)
        WHERE e.key IS NOT NULL AND (v_slow IS NULL OR e.at <> ALL (v_slow))
        ORDER BY e.key
        ON CONFLICT (key) DO NOTHING;
        GET DIAGNOSTICS v_kept = ROW_COUNT;
        IF cardinality(array_remove(p_guards, NULL)) > 0 THEN
            INSERT INTO {schema}.keys (key, body, done_until, old_body, event)
            SELECT e.key, e.body, timestamptz 'epoch' + (v_now + e.retain) * interval '1 microsecond', NULL, e.seq
            FROM unnest(p_guards, p_guard_bodies, p_retains, v_seqs) WITH ORDINALITY
                AS e (key, body, retain, seq, at)
            WHERE e.key IS NOT NULL AND (v_slow IS NULL OR e.at <> ALL (v_slow))
            ORDER BY e.key
            ON CONFLICT (key) DO NOTHING;
            GET DIAGNOSTICS v_guarded = ROW_COUNT;
        END IF;
        IF v_slow IS NOT NULL
            OR v_kept + v_guarded
                < cardinality(array_remove(p_keys, NULL)) + cardinality(array_remove(p_guards, NULL))
        THEN
            v_lost := ARRAY(
                SELECT e.at FROM unnest(p_keys, p_guards, v_seqs) WITH ORDINALITY AS e (key, guard, seq, at)
                WHERE e.seq IS NOT NULL AND EXISTS (
                    SELECT FROM unnest(ARRAY[e.key, e.guard]) AS w (key)
                    WHERE w.key IS NOT NULL
                        AND NOT EXISTS (SELECT FROM {schema}.keys k WHERE k.key = w.key AND k.event = e.seq)
                )
            );
            -- The other one of two keys, which was free. Nobody has seen it.
            DELETE FROM {schema}.keys k
            WHERE k.key = ANY (ARRAY(
                    SELECT w.key FROM unnest(v_lost) AS e (at)
                    CROSS JOIN LATERAL (VALUES (p_keys[e.at]), (p_guards[e.at])) AS w (key)
                ))
                AND k.event = ANY (ARRAY(SELECT v_seqs[e.at] FROM unnest(v_lost) AS e (at)));
            v_slow := v_slow || v_lost;
        END IF;

        INSERT INTO {schema}.events (seq, accepted, keep_until, lane, kind, digest, guard, key, chat, body, headers)
        OVERRIDING SYSTEM VALUE
        SELECT e.seq, v_now, v_now + e.retain, e.lane, v_ids[e.kind], e.key, e.guard, e.raw, e.chat, e.body, e.headers
        FROM unnest(v_seqs, p_keys, p_guards, p_kind, p_raws, p_chats, p_lanes, p_bodies, p_retains, p_headers)
            WITH ORDINALITY AS e (seq, key, guard, kind, raw, chat, lane, body, retain, headers, at)
        WHERE v_slow IS NULL OR e.at <> ALL (v_slow);
        v_due := {schema}.micros();
        WITH placed AS (
            INSERT INTO {schema}.head (lane, own, seq, due, kind, failures, crashes, is_tried, is_suspect, fence)
            SELECT DISTINCT ON (e.lane, e.own)
                e.lane, e.own, e.seq, CASE WHEN e.is_taken THEN v_due + e.lease ELSE v_now END,
                v_ids[e.kind], 0, 0, false, e.is_taken, CASE WHEN e.is_taken THEN (v_fence || to_hex(4096 + e.at))::uuid END
            FROM (
                SELECT
                    e.at, e.seq, e.kind, e.lease, coalesce(e.lane, 0) AS lane,
                    CASE WHEN e.lane IS NULL THEN e.seq ELSE 0 END AS own,
                    e.lease IS NOT NULL AND v_open[e.kind] AS is_taken
                FROM unnest(v_seqs, p_lanes, p_kind, p_leases) WITH ORDINALITY AS e (seq, lane, kind, lease, at)
                WHERE v_slow IS NULL OR e.at <> ALL (v_slow)
            ) AS e
            ORDER BY e.lane, e.own, e.seq
            ON CONFLICT (lane, own) DO UPDATE SET lane = excluded.lane WHERE false
            RETURNING seq
        )
        SELECT ARRAY(SELECT seq FROM placed) INTO v_heads;
        IF cardinality(v_heads) < v_count THEN
            WITH placed AS (
                INSERT INTO {schema}.wait (lane, seq, due, kind, failures, crashes, is_tried)
                SELECT e.lane, e.seq, v_now, v_ids[e.kind], 0, 0, false
                FROM unnest(v_seqs, p_lanes, p_kind) WITH ORDINALITY AS e (seq, lane, kind, at)
                WHERE e.seq <> ALL (v_heads) AND (v_slow IS NULL OR e.at <> ALL (v_slow))
                RETURNING seq
            )
            SELECT ARRAY(SELECT seq FROM placed) INTO v_waiting;
        END IF;
        RETURN QUERY
        SELECT
            e.at, 0::smallint, NULL::boolean, NULL::bigint, e.seq, v_now,
            CASE
                WHEN e.lease IS NOT NULL AND v_open[e.kind] AND (v_waiting IS NULL OR e.seq <> ALL (v_waiting))
                THEN (v_fence || to_hex(4096 + e.at))::uuid
            END
        FROM unnest(v_seqs, p_kind, p_leases) WITH ORDINALITY AS e (seq, kind, lease, at)
        WHERE v_slow IS NULL OR e.at <> ALL (v_slow);
    END IF;

    IF v_slow IS NOT NULL OR NOT v_is_fast THEN
        FOR o_at, o_answer, o_same, o_remaining, o_seq, o_accepted, o_fence IN
            SELECT e.at, a.*
            FROM unnest(
                p_keys, p_key_bodies, p_guards, p_guard_bodies, p_kind, p_raws, p_chats, p_lanes, p_bodies, p_retains,
                p_outcomes, p_reasons, p_leases
            ) WITH ORDINALITY AS e (
                key, key_body, guard, guard_body, kind, raw, chat, lane, body, retain, outcome, reason, lease, at
            )
            CROSS JOIN LATERAL {schema}.accept(
                e.key, e.key_body, e.guard, e.guard_body, p_kinds[e.kind], e.raw, e.chat, e.lane, e.body, e.retain,
                e.outcome, e.reason, e.lease
            ) AS a
            WHERE NOT v_is_fast OR e.at = ANY (v_slow)
        LOOP
            IF o_answer = 0 AND p_headers[o_at] IS NOT NULL THEN
                UPDATE {schema}.events SET headers = p_headers[o_at] WHERE seq = o_seq;
            END IF;
            RETURN NEXT;
        END LOOP;
    END IF;
END $tower_webhook$;

-- The headers of events that were taken. Of volatile functions, each statement sees what was committed before it: an
-- event may be newer than the statement that takes it.
CREATE FUNCTION {schema}.headers_of(p_seqs bigint[]) RETURNS TABLE (o_event bigint, o_headers bytea)
LANGUAGE plpgsql STRICT
    SET enable_seqscan = off
    SET enable_bitmapscan = off
AS $tower_webhook$
BEGIN
    RETURN QUERY
    SELECT e.seq, e.headers FROM {schema}.events e WHERE e.seq = ANY (p_seqs) AND e.headers IS NOT NULL;
END $tower_webhook$;

-- Notes the duration of the attempt that has just failed, in the transaction that recorded the failure.
CREATE FUNCTION {schema}.note_duration(p_seq bigint, p_took bigint) RETURNS boolean
LANGUAGE plpgsql STRICT
    SET enable_seqscan = off
    SET enable_bitmapscan = off
AS $tower_webhook$
BEGIN
    UPDATE {schema}.failures SET took = p_took
    WHERE seq = p_seq AND id = (
        SELECT last.id FROM {schema}.failures last WHERE last.seq = p_seq ORDER BY last.seq DESC, last.id DESC LIMIT 1
    );
    RETURN FOUND;
END $tower_webhook$;

-- The state of an event, which does not change before the transaction ends, except by a lease that expires. NULL if
-- there is no such event. Rows are locked in the order of `redrive` and `discard`.
CREATE FUNCTION {schema}.lock_state(p_seq bigint) RETURNS integer
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
            SELECT FROM {schema}.head WHERE lane = v_lane AND own = 0 AND seq = p_seq
        ) THEN
            RETURN 6;
        END IF;
    END LOOP;
    RAISE EXCEPTION 'event % is nowhere', p_seq USING ERRCODE = 'XX001';
END $tower_webhook$;

-- As `redrive`, for an event that is in this state.
CREATE FUNCTION {schema}.redrive_from(p_seq bigint, p_from bigint) RETURNS integer
LANGUAGE plpgsql AS $tower_webhook$
DECLARE
    v_state integer := {schema}.lock_state(p_seq);
BEGIN
    RETURN CASE
        WHEN v_state IS NULL THEN 1
        -- One in progress is not redriven, even if its lease expires just now.
        WHEN v_state <> p_from OR v_state = 1 THEN 2
        ELSE {schema}.redrive(p_seq)
    END;
END $tower_webhook$;

-- As `discard`, for an event that is in this state.
CREATE FUNCTION {schema}.discard_from(p_seq bigint, p_from bigint) RETURNS integer
LANGUAGE plpgsql AS $tower_webhook$
DECLARE
    v_state integer := {schema}.lock_state(p_seq);
BEGIN
    RETURN CASE WHEN v_state IS NULL THEN 1 WHEN v_state <> p_from THEN 2 ELSE {schema}.discard(p_seq) END;
END $tower_webhook$;

-- Whether the text of a failure contains another one, whose ASCII letters are lower case. Bytes, because a text may
-- have a NUL.
CREATE FUNCTION {schema}.contains(p_text bytea, p_part bytea) RETURNS boolean
LANGUAGE sql IMMUTABLE
AS $tower_webhook$
    SELECT position(p_part IN decode(lower(encode(p_text, 'escape') COLLATE "C"), 'escape')) > 0
$tower_webhook$;

-- The lanes that wait for an event since it failed, and these events: of each lane the one that is leased or holds it,
-- or else the first one. One that was set aside until now stands in its line, wherever its row still is.
CREATE FUNCTION {schema}.blocked(p_now bigint, p_lane bigint)
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
    WITH lanes AS MATERIALIZED (
        SELECT h.lane FROM {schema}.head h WHERE h.is_tried AND h.own = 0 AND p_lane IS NULL
        UNION
        SELECT h.lane FROM {schema}.kinds k JOIN {schema}.head h ON h.kind = k.id
        WHERE h.is_suspect AND h.own = 0 AND (h.crashes > 0 OR h.due <= p_now) AND p_lane IS NULL
        UNION
        SELECT a.lane FROM {schema}.aside a WHERE a.due <= p_now AND p_lane IS NULL
        UNION
        SELECT p_lane WHERE p_lane IS NOT NULL
    )
    SELECT
        l.lane, f.seq, f.kind, f.state, CASE WHEN f.state = 2 AND f.due > p_now THEN f.due END, f.failures,
        f.first_failed
    FROM lanes l CROSS JOIN LATERAL (
        SELECT * FROM (
            SELECT
                h.seq, h.kind, h.due, h.failures, h.first_failed,
                CASE
                    WHEN h.due = 9223372036854775807 THEN 6
                    WHEN h.fence IS NOT NULL AND h.due > p_now THEN 1
                    ELSE 2
                END AS state,
                h.is_tried OR h.crashes > 0 OR h.fence IS NOT NULL AND h.due <= p_now AS has_failed
            FROM {schema}.head h WHERE h.lane = l.lane AND h.own = 0
            UNION ALL
            (
                SELECT w.seq, w.kind, w.due, w.failures, w.first_failed, 2, w.is_tried OR w.crashes > 0
                FROM {schema}.wait w WHERE w.lane = l.lane ORDER BY w.lane, w.seq LIMIT 1
            )
            UNION ALL
            (
                SELECT a.seq, a.kind, a.due, a.failures, a.first_failed, 2, a.is_tried OR a.crashes > 0
                FROM {schema}.aside a WHERE a.lane = l.lane AND a.due <= p_now ORDER BY a.seq LIMIT 1
            )
        ) AS line
        ORDER BY line.state = 2, line.seq LIMIT 1
    ) AS f
    WHERE f.has_failed
$tower_webhook$;

-- A page of these, with the columns of their events, since when, and how many events wait behind them.
CREATE FUNCTION {schema}.blocked_lanes(p_lane bigint, p_after bigint, p_limit bigint)
RETURNS TABLE (
    o_seq bigint, o_kind text, o_key bytea, o_chat bytea, o_state bigint, o_accepted bigint, o_at bigint, o_due bigint,
    o_failures integer, o_is_redriven boolean, o_since bigint, o_waiting bigint
)
LANGUAGE sql VOLATILE
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
    SET jit = off
AS $tower_webhook$
    WITH clock AS MATERIALIZED (
        SELECT {schema}.micros() AS now
    ), found AS MATERIALIZED (
        SELECT c.now, b.* FROM clock c CROSS JOIN LATERAL {schema}.blocked(c.now, p_lane) AS b
        WHERE b.o_seq > p_after ORDER BY b.o_seq LIMIT p_limit
    )
    SELECT
        b.o_seq, k.name, e.key, e.chat, b.o_state::bigint, e.accepted, d.at, b.o_due, b.o_failures, e.is_redriven,
        coalesce(d.at, b.o_first_failed, e.accepted),
        least(1001, (
            SELECT count(*) FROM (
                SELECT FROM {schema}.head h WHERE h.lane = b.o_lane AND h.own = 0
                UNION ALL
                (SELECT FROM {schema}.wait w WHERE w.lane = b.o_lane LIMIT 1001)
                UNION ALL
                (SELECT FROM {schema}.aside a WHERE a.lane = b.o_lane AND a.due <= b.now LIMIT 1001)
            ) AS line
        )) - 1
    FROM found b
    JOIN {schema}.events e ON e.seq = b.o_seq
    JOIN {schema}.kinds k ON k.id = e.kind
    LEFT JOIN {schema}.dead d ON d.seq = b.o_seq AND b.o_state = 6
    ORDER BY b.o_seq
$tower_webhook$;

-- As in version 4, but it also deletes the headers.
CREATE OR REPLACE FUNCTION {schema}.purge(p_keep bigint, p_step bigint) RETURNS boolean
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
        WHERE has_body AND at <= v_now - p_keep ORDER BY at LIMIT p_step FOR UPDATE SKIP LOCKED
    ) AS found;
    v_bodies := coalesce(cardinality(v_seqs), 0);
    IF v_bodies > 0 THEN
        WITH emptied AS (
            UPDATE {schema}.events SET body = NULL, headers = NULL WHERE seq = ANY (v_seqs) RETURNING seq, keep_until
        )
        UPDATE {schema}.ended s SET has_body = false, keep_until = e.keep_until FROM emptied e WHERE s.seq = e.seq;
    END IF;

    -- A body is deleted first: an event may be settled when its retention has ended.
    SELECT array_agg(seq) INTO v_seqs FROM (
        SELECT seq FROM {schema}.ended
        WHERE keep_until <= v_now AND NOT has_body ORDER BY keep_until LIMIT p_step FOR UPDATE SKIP LOCKED
    ) AS found;
    IF v_seqs IS NULL THEN
        RETURN v_bodies = p_step;
    END IF;
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
    RETURN greatest(v_bodies, cardinality(v_seqs)) = p_step;
END $tower_webhook$;

-- As in version 4, but it also deletes the headers.
CREATE OR REPLACE FUNCTION {schema}.forget(p_chat bytea) RETURNS bigint
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
            UPDATE {schema}.ended SET
                has_body = false,
                keep_until = (SELECT e.keep_until FROM {schema}.events e WHERE e.seq = v_seq)
            WHERE seq = v_seq;
            EXIT WHEN FOUND OR NOT EXISTS (SELECT FROM {schema}.events WHERE seq = v_seq);
        END LOOP;
        -- Their texts may quote the body.
        DELETE FROM {schema}.failures WHERE seq = v_seq;
        UPDATE {schema}.events SET body = NULL, headers = NULL WHERE seq = v_seq AND body IS NOT NULL;
        IF FOUND THEN
            v_count := v_count + 1;
        END IF;
    END LOOP;
    RETURN v_count;
END $tower_webhook$;
