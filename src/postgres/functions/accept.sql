-- Events are accepted, many at once.
--
-- The settings of these functions leave the planner no choice but the indexes, however empty it believes a table to
-- be: `head` and `wait` are often empty when statistics are made, and may have hundreds of thousands of deleted rows
-- at that time, which stay as long as an old transaction of anybody does. Then the planner takes every index for one
-- of a single page, and may choose one that it has to read as a whole. So statements on these tables have conditions
-- of which only good indexes make use:
--
-- - `seq + 0 = …`, as no index has the expression;
-- - `lane BETWEEN … AND …`, since an order by lane and number is that of another index, too, if there is only one lane;
-- - the due time beside the number of an event that was put aside;
-- - a subquery with `LIMIT`, which is not made a join with all rows.

-- Whether an event exists and is unsettled or dead.
CREATE FUNCTION {schema}.is_kept(p_seq bigint) RETURNS boolean LANGUAGE plpgsql AS $tower_webhook$
BEGIN
    RETURN EXISTS (SELECT FROM {schema}.events WHERE seq = p_seq)
        AND NOT EXISTS (SELECT FROM {schema}.ended WHERE seq = p_seq);
END $tower_webhook$;

-- The answer to an event with a key, or NULL if the key is free.
CREATE FUNCTION {schema}.known(
    p_key uuid, p_body uuid, OUT o_answer text, OUT o_same boolean, OUT o_remaining bigint
) LANGUAGE plpgsql AS $tower_webhook$
BEGIN
    SELECT
        CASE
            WHEN k.done_until > clock_timestamp() THEN 'duplicate'
            WHEN k.lease_until > clock_timestamp() THEN 'in-flight'
            WHEN {schema}.is_kept(k.event) THEN 'duplicate'
        END,
        k.body = p_body,
        ceil(extract(epoch FROM k.lease_until - clock_timestamp()) * 1000000)::bigint
    INTO o_answer, o_same, o_remaining
    FROM {schema}.keys k WHERE k.key = p_key;
END $tower_webhook$;

-- Those of the kinds of which events can be taken: at these routes, and not paused. At those in `p_limited`, only the kinds
-- in `p_only` can be, and at none those in `p_except`; both have the names of routes in front: `github/push`. Planned as a
-- part of the statement that calls it.
CREATE FUNCTION {schema}.open_kinds(
    p_kinds integer[], p_routes text[], p_limited text[], p_only text[], p_except text[]
)
RETURNS SETOF {schema}.kinds LANGUAGE sql STABLE AS $tower_webhook$
    SELECT k.* FROM {schema}.kinds k
    WHERE k.id = ANY (p_kinds) AND k.route = ANY (p_routes)
        AND (k.route <> ALL (p_limited) OR k.route || '/' || k.name = ANY (p_only))
        AND k.route || '/' || k.name <> ALL (p_except)
        -- Its own pause, that of its route, or that of everything. No row has a name and no route.
        AND NOT EXISTS (
            SELECT FROM {schema}.kinds p
            WHERE p.name = ANY (ARRAY['', k.name]) AND p.route = ANY (ARRAY['', k.route]) AND p.paused > 0
        )
$tower_webhook$;

-- An event type as `EventType` writes it, and as workers note that they handle it.
CREATE FUNCTION {schema}.event_type(p_route text, p_kind text) RETURNS text LANGUAGE sql IMMUTABLE AS $tower_webhook$
    SELECT CASE WHEN p_route = 'chat-platform' AND p_kind NOT LIKE '%/%' THEN p_kind ELSE p_route || '/' || p_kind END
$tower_webhook$;

-- The routes of which as many types wait as may, as `MOST_WAITING_KINDS`: an event of each is first in its lane.
CREATE FUNCTION {schema}.full_routes() RETURNS text[]
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $tower_webhook$
BEGIN
    RETURN ARRAY(
        WITH RECURSIVE busy (kind) AS (
            (SELECT h.kind FROM {schema}.head h ORDER BY h.kind, h.is_suspect, h.due, h.seq LIMIT 1)
            UNION ALL
            SELECT (
                SELECT h.kind FROM {schema}.head h
                WHERE h.kind > b.kind ORDER BY h.kind, h.is_suspect, h.due, h.seq LIMIT 1
            ) FROM busy b WHERE b.kind IS NOT NULL
        )
        SELECT k.route FROM busy b, {schema}.kinds k WHERE k.id = b.kind GROUP BY k.route HAVING count(*) >= 1000
    );
END $tower_webhook$;

-- Records keys as done: those of the events that have a number. Returns how many were free.
CREATE FUNCTION {schema}.keep_keys(p_keys uuid[], p_bodies uuid[], p_retains bigint[], p_seqs bigint[], p_now bigint)
RETURNS integer LANGUAGE plpgsql
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $tower_webhook$
DECLARE
    v_kept integer;
BEGIN
    -- In the order of keys, so that two batches do not wait for each other.
    INSERT INTO {schema}.keys AS known (key, body, done_until, event)
    SELECT DISTINCT ON (e.key)
        e.key, e.body, timestamptz 'epoch' + (p_now + e.retain) * interval '1 microsecond', e.seq
    FROM unnest(p_keys, p_bodies, p_retains, p_seqs) AS e (key, body, retain, seq)
    WHERE e.key IS NOT NULL AND e.seq IS NOT NULL
    ORDER BY e.key, e.seq
    ON CONFLICT (key) DO UPDATE SET
        body = excluded.body,
        done_until = excluded.done_until,
        fence = NULL,
        lease_until = NULL,
        known_until = NULL,
        attempts = NULL,
        event = excluded.event
    WHERE (known.done_until > clock_timestamp() OR known.lease_until > clock_timestamp()) IS NOT TRUE
        AND NOT {schema}.is_kept(known.event);
    GET DIAGNOSTICS v_kept = ROW_COUNT;
    RETURN v_kept;
END $tower_webhook$;

-- The arrays have an element for each event; those that few events need are empty if none does. Items of a batch have the
-- number of their delivery, and if one is refused, so are all. `p_items` are their own numbers, and in the lower 32 bits
-- how many there are. `p_kinds` are positions in `p_names` and `p_routes`. Keys are locked first, in their own order, and then rows in
-- that of lanes, so that two batches do not wait for each other; kinds before both. The rows of the result have positions in
-- the arrays, and are in no order.
CREATE FUNCTION {schema}.accept(
    p_keys uuid[], p_key_bodies uuid[], p_guards uuid[], p_guard_bodies uuid[], p_names text[], p_routes text[],
    p_kinds bigint[], p_raws bytea[], p_chats bytea[], p_chat_lanes bigint[], p_lanes bigint[], p_bodies bytea[], p_headers bytea[],
    p_retains bigint[], p_leases bigint[], p_outcomes bytea[], p_reasons bytea[], p_took bigint[], p_shapes bigint[],
    p_deliveries bigint[], p_items bigint[], p_kept bytea[]
)
RETURNS TABLE (
    o_at bigint, o_answer text, o_same boolean, o_remaining bigint, o_seq bigint, o_accepted bigint, o_fence uuid
) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET lock_timeout = '400ms' AS $tower_webhook$
DECLARE
    v_now bigint := {schema}.micros();
    v_count integer := cardinality(p_kinds);
    v_at bigint;
    v_kind text;
    v_route text;
    v_id integer;
    v_ids integer[] := array_fill(NULL::integer, ARRAY[cardinality(p_names)]);
    v_open boolean[] := array_fill(NULL::boolean, ARRAY[cardinality(p_names)]);
    -- Looked up once, which costs as much as the types that wait.
    v_full text[];
    v_may_wait boolean[] := array_fill(true, ARRAY[cardinality(p_names)]);
    -- The events of types that may not wait, and why: as `TOO_MANY_KINDS`.
    v_one_more boolean[] := '{}';
    c_outcome CONSTANT bytea := 'too-many-types';
    c_reason CONSTANT bytea :=
        '1,000 other event types of this route wait already: have a worker take them, or discard them, and then redrive this event';
    c_shape CONSTANT bigint := 3447048317431973916;
    v_known bigint[];
    v_refused bigint[] := '{}';
    v_is_left boolean[] := array_fill(true, ARRAY[v_count]);
    v_new bigint[];
    v_seqs bigint[];
    v_wanted integer;
    v_lost bigint[];
    v_returning bigint[];
    v_fences uuid[];
    v_due bigint;
    v_heads bigint[];
    v_waiting bigint[];
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM {schema}.refuse_isolation(); END IF;
    -- Nobody may claim here, who would note it.
    IF array_remove(p_leases, NULL) = '{}' THEN PERFORM {schema}.note_time(v_now); END IF;

    -- A round stores the events whose keys are free. Another round follows for those that lost a key to another event
    -- after it was looked up, also of the same batch.
    FOR round IN 1..101 LOOP
        IF round > 100 THEN
            RAISE EXCEPTION 'a key cannot be kept although it is free' USING ERRCODE = 'XX001';
        END IF;
        v_known := ARRAY(
            SELECT e.at FROM unnest(v_is_left, p_keys, p_guards) WITH ORDINALITY AS e (is_left, key, guard, at)
            WHERE e.is_left AND EXISTS (SELECT FROM {schema}.keys k WHERE k.key = ANY (ARRAY[e.key, e.guard]))
        );
        -- Not `FOREACH o_at`, which would be another variable.
        FOREACH v_at IN ARRAY v_known LOOP
            o_at := v_at;
            o_answer := NULL;
            SELECT * INTO o_answer, o_same, o_remaining FROM {schema}.known(p_keys[o_at], p_key_bodies[o_at]);
            IF o_answer IS NULL AND p_guards[o_at] IS NOT NULL THEN
                SELECT CASE WHEN k.o_answer = 'duplicate' AND NOT k.o_same THEN 'body-replayed' ELSE k.o_answer END,
                    k.o_same, k.o_remaining
                INTO o_answer, o_same, o_remaining
                FROM {schema}.known(p_guards[o_at], p_guard_bodies[o_at]) AS k;
                -- The guard of a batch, which another item has brought.
                IF o_answer = 'duplicate' AND p_deliveries[o_at] IS NOT NULL THEN
                    o_answer := NULL;
                    p_guards[o_at] := NULL;
                END IF;
            END IF;
            IF o_answer IS NOT NULL THEN
                v_is_left[o_at] := false;
                RETURN NEXT;
            END IF;
            IF o_answer IN ('in-flight', 'body-replayed') AND p_deliveries[o_at] IS NOT NULL THEN
                v_refused := v_refused || p_deliveries[o_at];
            END IF;
        END LOOP;
        IF cardinality(v_refused) > 0 THEN
            FOR v_at IN
                SELECT e.at
                FROM unnest(v_is_left, v_seqs, p_deliveries) WITH ORDINALITY AS e (is_left, seq, delivery, at)
                WHERE (e.is_left OR e.seq IS NOT NULL) AND e.delivery = ANY (v_refused)
            LOOP
                -- An earlier round has stored it. Nobody has seen it.
                IF v_seqs[v_at] IS NOT NULL THEN
                    DELETE FROM {schema}.events o WHERE o.seq = v_seqs[v_at];
                    DELETE FROM {schema}.keys k
                    WHERE k.key = ANY (ARRAY[p_keys[v_at], p_guards[v_at]]) AND k.event = v_seqs[v_at];
                    v_seqs[v_at] := NULL;
                END IF;
                o_at := v_at;
                o_answer := 'refused';
                v_is_left[o_at] := false;
                RETURN NEXT;
            END LOOP;
        END IF;

        EXIT WHEN true <> ALL (v_is_left);
        -- After the look at the keys, as a copy of a delivery may have any kind. In the order of names, so that two
        -- batches do not wait for each other.
        IF round = 1 THEN
            FOR v_at, v_kind, v_route IN
                SELECT n.at, n.name, n.route
                FROM unnest(p_names, p_routes) WITH ORDINALITY AS n (name, route, at)
                WHERE n.at = ANY (ARRAY(SELECT e.kind FROM unnest(p_kinds, v_is_left) AS e (kind, is_left) WHERE is_left))
                ORDER BY n.name COLLATE "C", n.route COLLATE "C"
            LOOP
                SELECT k.id INTO v_id
                FROM {schema}.kinds k WHERE k.name = v_kind AND k.route = v_route AND k.is_seen;
                -- It is not deleted before the end of the transaction.
                IF v_id > 8 THEN PERFORM FROM {schema}.kinds k WHERE k.id = v_id FOR KEY SHARE; END IF;
                IF NOT FOUND THEN
                    INSERT INTO {schema}.kinds AS k (name, route, is_seen)
                    VALUES (v_kind, v_route, true)
                    ON CONFLICT (name, route) DO UPDATE SET is_seen = true
                    RETURNING k.id INTO v_id;
                END IF;
                v_ids[v_at] := v_id;
                v_open[v_at] := EXISTS (SELECT FROM {schema}.open_kinds(ARRAY[v_id], ARRAY[v_route], '{}', '{}', '{}'));
                -- There are no more types than numbers.
                IF v_id > 1000 AND NOT EXISTS (SELECT FROM {schema}.head h WHERE h.kind = v_id)
                    AND NOT EXISTS (SELECT FROM {schema}.handlers h WHERE h.handled = {schema}.event_type(v_route, v_kind))
                THEN
                    v_full := coalesce(v_full, {schema}.full_routes());
                    v_may_wait[v_at] := v_route <> ALL (v_full);
                END IF;
            END LOOP;
            IF false = ANY (v_may_wait) THEN
                SELECT array_agg(e.is_one_more ORDER BY e.at),
                    array_agg(CASE WHEN e.is_one_more THEN c_outcome ELSE e.outcome END ORDER BY e.at),
                    array_agg(CASE WHEN e.is_one_more THEN c_reason ELSE e.reason END ORDER BY e.at),
                    array_agg(CASE WHEN e.is_one_more THEN c_shape ELSE e.shape END ORDER BY e.at)
                INTO v_one_more, p_outcomes, p_reasons, p_shapes
                FROM (
                    SELECT e.*, e.outcome IS NULL AND NOT v_may_wait[e.kind]
                        AND (e.lease IS NULL OR NOT v_open[e.kind]) AS is_one_more
                    FROM unnest(p_kinds, p_leases, p_outcomes, p_reasons, p_shapes) WITH ORDINALITY
                        AS e (kind, lease, outcome, reason, shape, at)
                ) AS e;
            END IF;
        END IF;
        v_new := ARRAY(
            SELECT CASE WHEN e.is_left THEN nextval($tower_webhook_name${schema}.events_seq_seq$tower_webhook_name$) END
            FROM unnest(v_is_left) AS e (is_left)
        );
        SELECT count(e.key) + count(e.guard) INTO v_wanted
        FROM unnest(p_keys, p_guards, v_new) AS e (key, guard, seq) WHERE e.seq IS NOT NULL;
        v_wanted := v_wanted - {schema}.keep_keys(p_keys, p_key_bodies, p_retains, v_new, v_now);
        IF v_wanted > 0 THEN
            v_wanted := v_wanted - {schema}.keep_keys(p_guards, p_guard_bodies, p_retains, v_new, v_now);
        END IF;
        v_lost := '{}';
        IF v_wanted > 0 THEN
            v_lost := ARRAY(
                SELECT e.at FROM unnest(p_keys, p_guards, v_new) WITH ORDINALITY AS e (key, guard, seq, at)
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
                AND k.event = ANY (ARRAY(SELECT v_new[e.at] FROM unnest(v_lost) AS e (at)));
            v_new := ARRAY(
                SELECT CASE WHEN e.at <> ALL (v_lost) THEN e.seq END FROM unnest(v_new) WITH ORDINALITY AS e (seq, at)
            );
        END IF;
        INSERT INTO {schema}.events
            (seq, accepted, keep_until, lane, chat_lane, kind, digest, guard, key, chat, body, headers, delivery, item,
            items, kept)
        SELECT
            e.seq, v_now, v_now + e.retain, e.lane, e.chat_lane, v_ids[e.kind], e.key, e.guard, e.raw, e.chat, e.body,
            e.headers, e.delivery, e.item >> 32, e.item & 4294967295, e.kept
        FROM unnest(
            v_new, p_keys, p_guards, p_kinds, p_raws, p_chats, p_chat_lanes, p_lanes, p_bodies, p_headers, p_retains,
            p_deliveries, p_items, p_kept
        ) AS e (seq, key, guard, kind, raw, chat, chat_lane, lane, body, headers, retain, delivery, item, kept)
        WHERE e.seq IS NOT NULL;
        v_seqs := ARRAY(SELECT coalesce(e.before, e.seq) FROM unnest(v_seqs, v_new) AS e (before, seq));
        EXIT WHEN cardinality(v_lost) = 0;
        v_is_left := ARRAY(SELECT e.at = ANY (v_lost) FROM generate_series(1, v_count) AS e (at));
    END LOOP;

    IF cardinality(p_outcomes) > 0 THEN
        WITH failed AS (
            INSERT INTO {schema}.failures (seq, at, took, outcome, reason, shape)
            SELECT e.seq, v_now, e.took, e.outcome, e.reason, e.shape
            FROM unnest(v_seqs, p_took, p_outcomes, p_reasons, p_shapes) AS e (seq, took, outcome, reason, shape)
            WHERE e.seq IS NOT NULL AND e.outcome IS NOT NULL
        )
        INSERT INTO {schema}.dead (seq, at, kind, failures)
        SELECT e.seq, v_now, v_ids[e.kind], 1 FROM unnest(v_seqs, p_kinds, p_outcomes) AS e (seq, kind, outcome)
        WHERE e.seq IS NOT NULL AND e.outcome IS NOT NULL;
    END IF;
    -- An event that returns to its lane is before a new one, which is not taken.
    IF EXISTS (SELECT FROM {schema}.aside a WHERE a.due <= v_now) THEN
        v_returning := ARRAY(
            SELECT DISTINCT e.lane FROM unnest(p_lanes, v_seqs) AS e (lane, seq)
            CROSS JOIN LATERAL (SELECT FROM {schema}.aside a WHERE a.lane = e.lane AND a.due <= v_now LIMIT 1) AS due
            WHERE e.seq IS NOT NULL ORDER BY e.lane
        );
    END IF;
    v_fences := ARRAY(
        SELECT CASE
            WHEN e.lease IS NOT NULL AND v_open[e.kind] AND (e.lane = ANY (v_returning)) IS NOT TRUE
            THEN {schema}.new_fence()
        END
        FROM unnest(p_leases, p_kinds, p_lanes) AS e (lease, kind, lane)
    );
    v_due := {schema}.micros();
    -- Its caller may have given up by now, and a lease that nobody holds would count as a crash when it expires.
    IF v_due - v_now > 1000000 THEN v_fences := array_fill(NULL::uuid, ARRAY[v_count]); END IF;
    WITH placed AS (
        INSERT INTO {schema}.head (lane, own, seq, due, kind, failures, crashes, is_tried, is_suspect, fence)
        SELECT DISTINCT ON (e.place, e.own)
            e.place, e.own, e.seq, CASE WHEN e.fence IS NULL THEN v_now ELSE v_due + e.lease END, v_ids[e.kind], 0, 0,
            false, e.fence IS NOT NULL, e.fence
        FROM (
            SELECT e.*, coalesce(e.lane, 0) AS place, CASE WHEN e.lane IS NULL THEN e.seq ELSE 0 END AS own
            FROM unnest(v_seqs, p_lanes, p_kinds, p_leases, v_fences, p_outcomes)
                AS e (seq, lane, kind, lease, fence, outcome)
            WHERE e.seq IS NOT NULL AND e.outcome IS NULL
        ) AS e
        ORDER BY e.place, e.own, e.seq
        -- Locks the row that there is.
        ON CONFLICT (lane, own) DO UPDATE SET lane = excluded.lane WHERE false
        RETURNING seq
    )
    SELECT ARRAY(SELECT seq FROM placed) INTO v_heads;
    IF cardinality(v_heads) < v_count THEN
        WITH placed AS (
            INSERT INTO {schema}.wait (lane, seq, due, kind, failures, crashes, is_tried)
            SELECT e.lane, e.seq, v_now, v_ids[e.kind], 0, 0, false
            FROM unnest(v_seqs, p_lanes, p_kinds, p_outcomes) AS e (seq, lane, kind, outcome)
            WHERE e.seq IS NOT NULL AND e.outcome IS NULL AND e.seq <> ALL (v_heads)
            RETURNING seq
        )
        SELECT ARRAY(SELECT seq FROM placed) INTO v_waiting;
    END IF;
    PERFORM {schema}.rejoin_lane(e.lane) FROM unnest(v_returning) AS e (lane);
    RETURN QUERY
    SELECT
        e.at, CASE WHEN v_one_more[e.at] THEN 'dead-letter' ELSE 'new' END, NULL::boolean, NULL::bigint, e.seq, v_now,
        CASE
            -- Few have one, and the array may be long.
            WHEN e.fence IS NULL OR e.outcome IS NOT NULL THEN NULL
            WHEN v_waiting IS NULL OR e.seq <> ALL (v_waiting) THEN e.fence
        END
    FROM unnest(v_seqs, v_fences, p_outcomes) WITH ORDINALITY AS e (seq, fence, outcome, at)
    WHERE e.seq IS NOT NULL;
END $tower_webhook$;
