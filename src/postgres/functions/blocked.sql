-- The lanes that wait for an event since it failed, and these events: of each lane the one that is leased or holds it,
-- or else the first one. One that was set aside until now stands in its line, wherever its row still is. `p_lanes` are those
-- of a chat at all routes, which are looked at alone, or none for all lanes.
CREATE FUNCTION {schema}.blocked(p_now bigint, p_lanes bigint[])
RETURNS TABLE (
    o_lane bigint, o_seq bigint, o_kind integer, o_state {schema}.event_state, o_due bigint, o_failures integer,
    o_first_failed bigint
) LANGUAGE sql STABLE SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $tower_webhook$
    -- If no other event of a lane has failed, the head is used without looking for the first event: that look-up
    -- takes more time than all the rest.
    WITH others AS MATERIALIZED (
        SELECT w.lane FROM {schema}.wait w WHERE (w.is_tried OR w.crashes > 0) AND p_lanes = '{}'
        UNION
        SELECT a.lane FROM {schema}.aside a WHERE a.due <= p_now AND p_lanes = '{}'
        UNION
        SELECT unnest(p_lanes)
    ), firsts AS (
        SELECT h.lane, h.seq, h.kind, h.due, h.failures, h.first_failed,
            {schema}.state_of(h.is_tried, h.crashes, h.fence, h.due, p_now) AS state
        FROM (
            SELECT h.* FROM {schema}.head h WHERE h.is_tried AND h.own = 0 AND p_lanes = '{}'
            UNION ALL
            SELECT h.* FROM {schema}.kinds k JOIN {schema}.head h ON h.kind = k.id
            WHERE h.is_suspect AND NOT h.is_tried AND h.own = 0 AND (h.crashes > 0 OR h.due <= p_now) AND p_lanes = '{}'
        ) AS h
        WHERE h.lane NOT IN (SELECT o.lane FROM others o)
        UNION ALL
        SELECT o.lane, f.seq, f.kind, f.due, f.failures, f.first_failed, f.state
        FROM others o CROSS JOIN LATERAL (
            SELECT * FROM (
                SELECT h.seq, h.kind, h.due, h.failures, h.first_failed,
                    {schema}.state_of(h.is_tried, h.crashes, h.fence, h.due, p_now) AS state,
                    h.is_tried OR h.crashes > 0 OR h.fence IS NOT NULL AND h.due <= p_now AS has_failed
                FROM {schema}.head h WHERE h.lane = o.lane AND h.own = 0
                UNION ALL
                (
                    SELECT w.seq, w.kind, w.due, w.failures, w.first_failed, 'retrying', w.is_tried OR w.crashes > 0
                    FROM {schema}.wait w WHERE w.lane = o.lane ORDER BY w.lane, w.seq LIMIT 1
                )
                UNION ALL
                (
                    SELECT a.seq, a.kind, a.due, a.failures, a.first_failed, 'retrying', a.is_tried OR a.crashes > 0
                    FROM {schema}.aside a WHERE a.lane = o.lane AND a.due <= p_now ORDER BY a.seq LIMIT 1
                )
            ) AS line
            ORDER BY line.state IN ('waiting', 'retrying'), line.seq LIMIT 1
        ) AS f
        WHERE f.has_failed
    )
    SELECT
        f.lane, f.seq, f.kind, f.state, CASE WHEN f.state = 'retrying' AND f.due > p_now THEN f.due END, f.failures,
        f.first_failed
    FROM firsts f
$tower_webhook$;

-- A page of these, with the columns of their events, since when, and how many events wait behind them.
CREATE FUNCTION {schema}.blocked_lanes(p_lanes bigint[], p_after bigint, p_limit bigint)
RETURNS TABLE (
    o_seq bigint, o_route text, o_kind text, o_key bytea, o_chat bytea, o_state text, o_accepted bigint, o_at bigint,
    o_due bigint, o_failures integer, o_is_redriven boolean, o_since bigint, o_waiting bigint
) LANGUAGE sql VOLATILE SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $tower_webhook$
    WITH clock AS MATERIALIZED (
        SELECT {schema}.micros() AS now
    ), found AS MATERIALIZED (
        SELECT c.now, b.* FROM clock c CROSS JOIN LATERAL {schema}.blocked(c.now, p_lanes) AS b
        WHERE b.o_seq > p_after ORDER BY b.o_seq LIMIT p_limit
    )
    SELECT
        b.o_seq, k.route, k.name, e.key, e.chat, b.o_state::text, e.accepted, d.at, b.o_due, b.o_failures,
        e.is_redriven, coalesce(d.at, b.o_first_failed, e.accepted),
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
    LEFT JOIN {schema}.dead d ON d.seq = b.o_seq AND b.o_state = 'dead'
    ORDER BY b.o_seq
$tower_webhook$;
