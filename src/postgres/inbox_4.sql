-- Version 4: the inbox accepts and settles many events by few statements. What is rare is left to the functions of
-- version 3, one event at a time: keys that are known, events that arrive dead, lanes to which an event returns, and
-- attempts that end in another way than `handled` and `ignored`.
--
-- The arrays have an element for each event, in the order of lanes. Keys are locked first, in their own order, and then
-- rows in that of lanes, so that two batches do not wait for each other. A function of version 3 locks a lane before a
-- key of the next event: where both are used at one time, PostgreSQL may have to end one of them, which is repeated.

-- A purge finds a row by one of two indexes, each of which has only a part of them: at first that of the bodies, and
-- that of the retention when the body was deleted. Until then, only `events` has the end of the retention.
ALTER TABLE {schema}.ended ALTER COLUMN keep_until DROP NOT NULL;
DROP INDEX {schema}.ended_keep_until;
CREATE INDEX ended_keep_until ON {schema}.ended (keep_until) WHERE NOT has_body;

-- Numbers are given before the events are inserted, so that they can be in the rows of the keys.
GRANT USAGE ON SEQUENCE {schema}.events_seq_seq TO PUBLIC;

-- The rows of the result are those of `accept`, each with the place of its event in the arrays. `p_kind` are places
-- in `p_kinds`.
CREATE FUNCTION {schema}.accept_all(
    p_keys uuid[], p_key_bodies uuid[], p_guards uuid[], p_guard_bodies uuid[],
    p_kinds text[], p_kind bigint[], p_raws bytea[], p_chats bytea[], p_lanes bigint[], p_bodies bytea[],
    p_retains bigint[], p_outcomes bytea[], p_reasons bytea[], p_leases bigint[]
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

        INSERT INTO {schema}.events (seq, accepted, keep_until, lane, kind, digest, guard, key, chat, body)
        OVERRIDING SYSTEM VALUE
        SELECT e.seq, v_now, v_now + e.retain, e.lane, v_ids[e.kind], e.key, e.guard, e.raw, e.chat, e.body
        FROM unnest(v_seqs, p_keys, p_guards, p_kind, p_raws, p_chats, p_lanes, p_bodies, p_retains)
            WITH ORDINALITY AS e (seq, key, guard, kind, raw, chat, lane, body, retain, at)
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
        RETURN QUERY
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
        WHERE NOT v_is_fast OR e.at = ANY (v_slow);
    END IF;
END $tower_webhook$;

-- As `settle`, for each of the attempts. They have the same kinds that can be taken.
CREATE FUNCTION {schema}.settle_all(
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
                WHERE h.lane = e.lane AND h.own = ANY (ARRAY[0, e.seq]) AND h.seq = e.seq AND h.fence = e.fence
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
            WHERE NOT EXISTS (SELECT FROM {schema}.wait w WHERE w.lane = e.lane)
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

-- As in version 3, but the time until which an event is kept is noted when its body is deleted.
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
            UPDATE {schema}.events SET body = NULL WHERE seq = ANY (v_seqs) RETURNING seq, keep_until
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

-- As in version 3, but it also notes until when the event is kept.
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
        UPDATE {schema}.events SET body = NULL WHERE seq = v_seq AND body IS NOT NULL;
        IF FOUND THEN
            v_count := v_count + 1;
        END IF;
    END LOOP;
    RETURN v_count;
END $tower_webhook$;
