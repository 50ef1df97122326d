-- Events are taken under leases, and return to their lanes when they are due again.

-- Notes the time of the server's clock, unless it was set back. Returns by how much it was, or zero.
CREATE FUNCTION {schema}.note_time(p_now bigint) RETURNS bigint LANGUAGE plpgsql SET jit = off SET enable_seqscan = off
AS $tower_webhook$
DECLARE
    c_second CONSTANT bigint := 1000000;
    v_back bigint;
BEGIN
    SELECT c.seen - p_now INTO v_back FROM {schema}.clock c;
    IF v_back > c_second THEN RETURN v_back; END IF;
    IF v_back < -5 * c_second THEN
        SELECT c.seen - p_now INTO v_back FROM {schema}.clock c FOR UPDATE SKIP LOCKED;
        IF v_back < -5 * c_second THEN
            UPDATE {schema}.clock SET
                seen = p_now,
                steady_since = CASE WHEN v_back < -3600 * c_second THEN p_now ELSE steady_since END;
        END IF;
    END IF;
    RETURN 0;
END $tower_webhook$;

-- Notes the time of the server's clock. If the clock was set back, due times of before are set back as well, and so are
-- leases that end later than one of `p_lease` that begins now, the longest there is. Returns by how much. Rows that others
-- have locked at that moment keep their times: whoever tried again could not tell them from those that were set back.
CREATE FUNCTION {schema}.tick(p_now bigint, p_lease bigint) RETURNS bigint LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off AS $tower_webhook$
DECLARE
    v_back bigint;
BEGIN
    IF {schema}.note_time(p_now) = 0 THEN RETURN 0; END IF;
    SELECT c.seen - p_now INTO v_back FROM {schema}.clock c FOR UPDATE SKIP LOCKED;
    -- Another claim was first.
    IF NOT FOUND OR v_back <= 1000000 THEN RETURN 0; END IF;
    UPDATE {schema}.clock SET seen = p_now, steady_since = least(steady_since, p_now);

    -- In the order of lanes, as all who change them, and without those that others have locked: a claim must not wait.
    WITH free AS (SELECT ctid FROM {schema}.head WHERE due > p_now ORDER BY lane, own FOR UPDATE SKIP LOCKED)
    UPDATE {schema}.head t SET
        due = due - v_back, first_failed = CASE WHEN first_failed > p_now THEN p_now ELSE first_failed END
    FROM free WHERE t.ctid = free.ctid AND due > p_now + CASE WHEN fence IS NULL THEN 0 ELSE p_lease END;
    WITH free AS (SELECT ctid FROM {schema}.wait WHERE due > p_now FOR UPDATE SKIP LOCKED)
    UPDATE {schema}.wait t SET
        due = due - v_back, first_failed = CASE WHEN first_failed > p_now THEN p_now ELSE first_failed END
    FROM free WHERE t.ctid = free.ctid;
    WITH free AS (SELECT ctid FROM {schema}.aside WHERE due > p_now FOR UPDATE SKIP LOCKED)
    UPDATE {schema}.aside t SET
        due = due - v_back, first_failed = CASE WHEN first_failed > p_now THEN p_now ELSE first_failed END
    FROM free WHERE t.ctid = free.ctid;
    RETURN v_back;
END $tower_webhook$;

-- The random number of an attempt. It begins with that of the call, if this has one.
CREATE FUNCTION {schema}.new_fence() RETURNS uuid LANGUAGE plpgsql AS $tower_webhook$
BEGIN
    RETURN overlay(
        gen_random_uuid()::text PLACING coalesce(current_setting('tower_webhook.call', true), '') FROM 1
    )::uuid;
END $tower_webhook$;

-- Begins a call that may take events, unless it was given up. Until the call has ended, nobody gives it up.
CREATE FUNCTION {schema}.begin_call(p_call text) RETURNS text
LANGUAGE plpgsql SET jit = off SET enable_seqscan = off SET lock_timeout = '400ms' AS $tower_webhook$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM {schema}.refuse_isolation(); END IF;
    PERFORM pg_advisory_xact_lock_shared(hashtextextended(p_call, 0));
    IF EXISTS (SELECT FROM {schema}.given_up WHERE call = p_call) THEN
        RAISE EXCEPTION 'the caller has given up' USING ERRCODE = 'TW002';
    END IF;
    RETURN set_config('tower_webhook.call', p_call, true);
END $tower_webhook$;

-- Gives up calls whose caller got no answer, and their leases. Nobody acknowledged them, so they do not count as crashes.
-- Returns those that need not be given up again: not one that the server is executing, or whose event is locked.
CREATE FUNCTION {schema}.give_up(p_calls text[]) RETURNS text[]
LANGUAGE plpgsql SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET lock_timeout = '400ms' AS $tower_webhook$
DECLARE
    v_call text;
    v_ended text[] := '{}';
    v_kinds integer[];
    v_head {schema}.head%ROWTYPE;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM {schema}.refuse_isolation(); END IF;
    DELETE FROM {schema}.given_up WHERE at < {schema}.micros() - 3600000000;
    FOREACH v_call IN ARRAY p_calls LOOP
        IF pg_try_advisory_xact_lock(hashtextextended(v_call, 0)) THEN
            INSERT INTO {schema}.given_up (call, at) VALUES (v_call, {schema}.micros()) ON CONFLICT (call) DO NOTHING;
            v_ended := v_ended || v_call;
        END IF;
    END LOOP;
    v_kinds := ARRAY(SELECT k.id FROM {schema}.kinds k WHERE k.is_seen);
    FOR v_head IN
        SELECT h.* FROM {schema}.head h
        WHERE h.kind = ANY (v_kinds) AND h.is_suspect AND left(h.fence::text, 18) = ANY (v_ended)
        ORDER BY h.lane, h.own FOR UPDATE SKIP LOCKED
    LOOP
        UPDATE {schema}.head SET due = {schema}.micros(), is_suspect = crashes > 0, fence = NULL
        WHERE lane = v_head.lane AND own = v_head.own;
        IF v_head.own = 0 THEN PERFORM {schema}.sort_head(v_head.lane); END IF;
    END LOOP;
    RETURN ARRAY(
        SELECT c.call FROM unnest(v_ended) AS c (call) WHERE c.call <> ALL (ARRAY(
            SELECT left(h.fence::text, 18) FROM {schema}.head h
            WHERE h.kind = ANY (v_kinds) AND h.is_suspect AND h.fence IS NOT NULL
        ))
    );
END $tower_webhook$;

-- Whether another transaction has locked a row of `head`. Otherwise this one has, if there is such a row. Nobody waits: an
-- operator's transaction, or one that stands still, concerns its own chats only.
CREATE FUNCTION {schema}.is_locked(p_lane bigint, p_own bigint) RETURNS boolean
LANGUAGE plpgsql SET jit = off SET enable_seqscan = off SET lock_timeout = '400ms' AS $tower_webhook$
BEGIN
    PERFORM FROM {schema}.head WHERE lane = p_lane AND own = p_own FOR UPDATE SKIP LOCKED;
    RETURN NOT FOUND AND EXISTS (SELECT FROM {schema}.head WHERE lane = p_lane AND own = p_own);
END $tower_webhook$;

-- Takes events that are due, from a floor on: of the kinds in `p_kinds`, no event that has never crashed is due
-- before `p_ready`, and no crashed one before `p_crashed`; and no lease of the same durations ends between now and
-- `p_leased`. So deleted rows, which stay as long as an old transaction of anybody does, are not read again. Only a
-- floor of zeros finds every event: a few become due in the past, as one that waited for the attempt of a later one
-- of its lane. So the caller has to claim without a floor from time to time. Only events with numbers from `p_first` to
-- `p_last` are taken.
--
-- `p_leases`, `p_busy`, `p_most` and `p_each` have an element for each of `p_routes`. Suspects come first. Each event is of
-- the route with the fewest attempts in progress, and of its kinds the one with the fewest. No route has more than `p_most`
-- of them. The kinds `p_apart` have `p_apart_busy` attempts, and may have `p_apart_most`; each other one may have `p_each`.
--
-- The last row has no number. It contains the time until there may be more of the routes with fewer than that, the next
-- floor, how long the claim took, and by how much the clock was set back.
CREATE FUNCTION {schema}.claim(
    p_routes text[], p_leases bigint[], p_busy bigint[], p_most bigint[], p_limited text[], p_only text[],
    p_except text[], p_limit bigint, p_suspects bigint, p_kinds integer[], p_ready bigint, p_crashed bigint,
    p_leased bigint, p_first bigint, p_last bigint, p_each bigint[], p_apart text[], p_apart_busy bigint[],
    p_apart_most bigint[]
)
RETURNS TABLE (
    o_seq bigint, o_fence uuid, o_place bigint, o_is_in_lane boolean, o_route text, o_kind text, o_key bytea,
    o_body bytea, o_headers bytea, o_accepted bigint, o_is_redriven boolean, o_failures integer, o_crashes integer,
    o_tried_for bigint, o_uncounted integer, o_delivery bigint, o_item integer, o_items integer, o_kept bytea, o_next_due bigint,
    o_kinds integer[], o_ready bigint, o_crashed bigint, o_leased bigint, o_took bigint, o_set_back bigint
) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET lock_timeout = '400ms' AS $tower_webhook$
DECLARE
    -- Transactions that began this long before they commit are seen in spite of a floor.
    c_slack CONSTANT bigint := 3000000;
    -- So many kinds are visited without a look at which have work: it would read deleted rows, too.
    c_few CONSTANT bigint := 100;
    -- As `BYTES_OF_CLAIM`.
    c_bytes CONSTANT bigint := 8388608;
    v_bytes bigint := 0;
    v_now bigint := {schema}.micros();
    v_shortest bigint;
    v_longest bigint;
    v_set_back bigint;
    v_kinds integer[];
    -- The positions of their routes, and the next lease of each that ends.
    v_at integer[];
    v_leased bigint[];
    -- How many attempts of each are in progress, and may be.
    v_busy bigint[];
    v_most bigint[];
    -- Those that may have more attempts, and whose routes may.
    v_open integer[];
    v_is_whole boolean;
    v_next bigint;
    v_returned bigint := 0;
    v_suspects bigint := p_suspects;
    v_left bigint;
    v_taken bigint := 0;
    v_again boolean;
    v_aside {schema}.aside%ROWTYPE;
    v_apart record;
    v_head record;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM {schema}.refuse_isolation(); END IF;
    SELECT min(lease), max(lease) INTO v_shortest, v_longest FROM unnest(p_leases) AS lease;
    v_set_back := {schema}.tick(v_now, v_longest);
    FOR v_aside IN
        SELECT * FROM {schema}.aside WHERE due <= v_now AND NOT {schema}.is_locked(lane, 0)
        ORDER BY due, seq LIMIT 100 FOR UPDATE SKIP LOCKED
    LOOP
        DELETE FROM {schema}.aside WHERE due = v_aside.due AND seq = v_aside.seq;
        PERFORM {schema}.rejoin(v_aside);
        v_returned := v_returned + 1;
        p_ready := least(p_ready, v_aside.due);
        p_crashed := least(p_crashed, v_aside.due);
    END LOOP;
    IF (SELECT count(*) FROM (SELECT FROM {schema}.kinds LIMIT c_few + 1) AS k) <= c_few THEN
        v_kinds := ARRAY(SELECT k.id FROM {schema}.kinds k WHERE k.is_seen);
    ELSIF p_routes <@ p_limited THEN
        -- Those that are named. Kinds that nobody takes cost nothing.
        v_kinds := ARRAY(
            SELECT k.id FROM unnest(p_only) AS o (kind), {schema}.kinds k
            WHERE k.name = substr(o.kind, strpos(o.kind, '/') + 1) AND k.route = split_part(o.kind, '/', 1) AND k.is_seen
        );
    ELSE
        -- Those that have work.
        v_kinds := ARRAY(
            WITH RECURSIVE busy (kind) AS (
                (SELECT h.kind FROM {schema}.head h ORDER BY h.kind, h.is_suspect, h.due, h.seq LIMIT 1)
                UNION ALL
                SELECT (
                    SELECT h.kind FROM {schema}.head h
                    WHERE h.kind > b.kind ORDER BY h.kind, h.is_suspect, h.due, h.seq LIMIT 1
                ) FROM busy b WHERE b.kind IS NOT NULL
            ), later (kind) AS (
                (SELECT a.kind FROM {schema}.aside a ORDER BY a.kind, a.due LIMIT 1)
                UNION ALL
                SELECT (SELECT a.kind FROM {schema}.aside a WHERE a.kind > l.kind ORDER BY a.kind, a.due LIMIT 1)
                FROM later l WHERE l.kind IS NOT NULL
            )
            SELECT kind FROM busy UNION SELECT kind FROM later
        );
    END IF;
    SELECT coalesce(array_agg(k.id ORDER BY k.id), '{}'), array_agg(array_position(p_routes, k.route) ORDER BY k.id)
    INTO v_kinds, v_at FROM {schema}.open_kinds(v_kinds, p_routes, p_limited, p_only, p_except) AS k;
    v_busy := array_fill(0::bigint, ARRAY[cardinality(v_kinds)]);
    v_most := ARRAY(SELECT p_each[o.at] FROM unnest(v_at) WITH ORDINALITY AS o (at, nr) ORDER BY o.nr);
    FOR v_apart IN
        SELECT array_position(v_kinds, k.id) AS nr, a.busy, a.most
        FROM unnest(p_apart, p_apart_busy, p_apart_most) AS a (kind, busy, most), {schema}.kinds k
        WHERE k.name = substr(a.kind, strpos(a.kind, '/') + 1) AND k.route = split_part(a.kind, '/', 1)
    LOOP
        IF v_apart.nr IS NOT NULL THEN
            v_busy[v_apart.nr] := v_apart.busy;
            v_most[v_apart.nr] := v_apart.most;
        END IF;
    END LOOP;
    IF v_kinds <> p_kinds OR v_set_back > 0 OR greatest(p_ready, p_crashed) > v_now THEN
        SELECT 0, 0, 0 INTO p_ready, p_crashed, p_leased;
    END IF;
    v_is_whole := p_ready = 0;
    -- What is in progress elsewhere is due when its lease expires.
    v_leased := ARRAY(
        SELECT (
            SELECT h.due FROM {schema}.head h
            WHERE h.kind = o.kind AND h.is_suspect AND h.due > greatest(v_now, p_leased - 1)
            ORDER BY h.due, h.seq LIMIT 1
        ) FROM unnest(v_kinds) AS o (kind)
    );

    LOOP
        v_again := false;
        v_left := p_limit - v_taken;
        FOR v_head IN
            WITH suspects AS MATERIALIZED (
                SELECT r.at, r.most, r.busy + h.turn AS nth, h.*
                FROM unnest(p_busy, p_most) WITH ORDINALITY AS r (busy, most, at)
                CROSS JOIN LATERAL (SELECT least(v_left, v_suspects, greatest(r.most - r.busy, 0))) AS room (most)
                CROSS JOIN LATERAL (
                    SELECT h.*, row_number() OVER (ORDER BY h.nth_of_kind, h.due, h.seq) AS turn
                    FROM (
                        SELECT h.*, o.nr, o.busy + row_number() OVER (PARTITION BY o.nr ORDER BY h.due, h.seq) AS nth_of_kind
                        FROM unnest(v_kinds, v_at, v_busy, v_most) WITH ORDINALITY AS o (kind, at, busy, most, nr)
                        CROSS JOIN LATERAL (
                            SELECT h.* FROM {schema}.head h
                            WHERE h.kind = o.kind AND h.is_suspect AND h.due >= p_crashed AND h.due <= v_now
                                AND h.seq BETWEEN p_first AND p_last
                            ORDER BY h.due, h.seq LIMIT least(room.most, greatest(o.most - o.busy, 0))
                            FOR UPDATE SKIP LOCKED
                        ) AS h
                        WHERE o.at = r.at
                    ) AS h
                    ORDER BY h.nth_of_kind, h.due, h.seq LIMIT room.most
                ) AS h
                ORDER BY nth, nth_of_kind, due, seq LIMIT v_suspects
            ), ready AS MATERIALIZED (
                SELECT r.at, r.most, r.busy + (SELECT count(*) FROM suspects s WHERE s.at = r.at) + h.turn AS nth, h.*
                FROM unnest(p_busy, p_most) WITH ORDINALITY AS r (busy, most, at)
                CROSS JOIN LATERAL (SELECT least(v_left, greatest(r.most - r.busy, 0))) AS room (most)
                CROSS JOIN LATERAL (
                    SELECT h.*, row_number() OVER (ORDER BY h.nth_of_kind, h.due, h.seq) AS turn
                    FROM (
                        SELECT h.*, o.nr, o.busy + row_number() OVER (PARTITION BY o.nr ORDER BY h.due, h.seq) AS nth_of_kind
                        FROM (
                            SELECT o.kind, o.at, o.most, o.nr, o.busy + (SELECT count(*) FROM suspects s WHERE s.nr = o.nr) AS busy
                            FROM unnest(v_kinds, v_at, v_busy, v_most) WITH ORDINALITY AS o (kind, at, busy, most, nr)
                        ) AS o
                        CROSS JOIN LATERAL (
                            SELECT h.* FROM {schema}.head h
                            WHERE h.kind = o.kind AND NOT h.is_suspect AND h.due >= p_ready AND h.due <= v_now
                                AND h.seq BETWEEN p_first AND p_last
                            ORDER BY h.due, h.seq LIMIT least(room.most, greatest(o.most - o.busy, 0))
                            FOR UPDATE SKIP LOCKED
                        ) AS h
                        WHERE o.at = r.at
                    ) AS h
                    ORDER BY h.nth_of_kind, h.due, h.seq LIMIT room.most
                ) AS h
            )
            -- Suspects were in progress before all that waits.
            SELECT * FROM (SELECT * FROM suspects UNION ALL SELECT * FROM ready) AS f
            WHERE nth <= most ORDER BY is_suspect DESC, nth, nth_of_kind, due, seq LIMIT v_left
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
                due = v_now + p_leases[v_head.at], crashes = v_head.crashes, is_suspect = true,
                fence = {schema}.new_fence()
            WHERE h.lane = v_head.lane AND h.own = v_head.own
            RETURNING h.fence INTO o_fence;
            IF v_head.crashes > 0 THEN v_suspects := v_suspects - 1; END IF;
            v_taken := v_taken + 1;
            p_busy[v_head.at] := p_busy[v_head.at] + 1;
            v_busy[v_head.nr] := v_busy[v_head.nr] + 1;
            SELECT v_head.seq, v_head.lane, v_head.own = 0, k.route, k.name, e.key, e.body, e.headers, e.accepted,
                e.is_redriven, v_head.failures, v_head.crashes,
                CASE WHEN v_head.is_tried OR v_head.failures > 0 THEN v_now - v_head.first_failed END,
                v_head.uncounted, e.delivery, e.item, e.items, e.kept
            INTO o_seq, o_place, o_is_in_lane, o_route, o_kind, o_key, o_body, o_headers, o_accepted,
                o_is_redriven, o_failures, o_crashes, o_tried_for, o_uncounted, o_delivery, o_item, o_items, o_kept
            FROM {schema}.events e, {schema}.kinds k WHERE e.seq = v_head.seq AND k.id = e.kind;
            -- Of one that cannot be read, too.
            SELECT v_head.seq, v_head.lane, v_head.crashes INTO o_seq, o_place, o_crashes;
            RETURN NEXT;
            v_bytes := v_bytes + coalesce(octet_length(o_body), 0);
            EXIT WHEN v_bytes >= c_bytes;
        END LOOP;
        EXIT WHEN NOT v_again OR v_bytes >= c_bytes;
    END LOOP;

    -- The floor is below all that was left. The next time is that of kinds which may have more attempts.
    v_open := ARRAY(
        SELECT o.kind FROM unnest(v_kinds, v_at, v_busy, v_most) AS o (kind, at, busy, most)
        WHERE p_busy[o.at] < p_most[o.at] AND o.busy < o.most
    );
    IF v_returned = 100 THEN
        v_next := v_now;
    ELSE
        SELECT min(later.due) INTO v_next
        FROM unnest(v_open) AS o (kind)
        CROSS JOIN LATERAL (
            SELECT a.due FROM {schema}.aside a WHERE a.kind = o.kind AND a.due > v_now ORDER BY a.due LIMIT 1
        ) AS later;
    END IF;
    SELECT min(o.due), least(v_next, min(o.due) FILTER (WHERE o.kind = ANY (v_open))) INTO o_leased, v_next
    FROM unnest(v_kinds, v_leased) AS o (kind, due);
    SELECT min(ready.due), least(v_next, min(ready.due) FILTER (WHERE o.kind = ANY (v_open))) INTO o_ready, v_next
    FROM unnest(v_kinds) AS o (kind)
    CROSS JOIN LATERAL (
        SELECT h.due FROM {schema}.head h
        WHERE h.kind = o.kind AND NOT h.is_suspect AND h.due >= p_ready ORDER BY h.due, h.seq LIMIT 1
    ) AS ready;
    IF p_suspects > 0 OR v_is_whole THEN
        SELECT min(crashed.due),
            least(v_next, min(crashed.due) FILTER (WHERE o.kind = ANY (v_open) AND v_suspects > 0))
        INTO o_crashed, v_next
        FROM unnest(v_kinds) AS o (kind)
        CROSS JOIN LATERAL (
            SELECT h.due FROM {schema}.head h
            WHERE h.kind = o.kind AND h.is_suspect AND h.due >= p_crashed AND h.due <= v_now
            ORDER BY h.due, h.seq LIMIT 1
        ) AS crashed;
        o_crashed := least(o_crashed, v_now - c_slack);
    ELSE
        o_crashed := p_crashed;
    END IF;
    SELECT NULL, NULL, NULL, NULL INTO o_seq, o_body, o_headers, o_kept;
    o_next_due := CASE WHEN v_next IS NOT NULL THEN greatest(v_next - v_now, 0) END;
    o_kinds := v_kinds;
    o_ready := least(o_ready, v_now - c_slack);
    o_leased := coalesce(least(o_leased, v_now - c_slack + v_shortest), 0);
    o_took := {schema}.micros() - v_now;
    o_set_back := v_set_back;
    RETURN NEXT;
END $tower_webhook$;
