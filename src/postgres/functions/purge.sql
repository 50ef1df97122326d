-- What has expired is deleted.

-- Deletes the kinds that have no event, but for those that somebody accepts just now.
CREATE FUNCTION {schema}.purge_kinds() RETURNS void LANGUAGE plpgsql AS $tower_webhook$
DECLARE
    v_kinds integer[];
BEGIN
    v_kinds := ARRAY(
        SELECT k.id FROM {schema}.kinds k
        WHERE k.id > 8 AND k.paused = 0
            AND NOT EXISTS (SELECT FROM {schema}.events e WHERE e.kind > 8 AND e.kind = k.id)
        FOR UPDATE SKIP LOCKED
    );
    -- An event may have been accepted before the lock.
    DELETE FROM {schema}.kinds k
    WHERE k.id = ANY (v_kinds) AND NOT EXISTS (SELECT FROM {schema}.events e WHERE e.kind > 8 AND e.kind = k.id);
END $tower_webhook$;

-- Deletes bodies that were kept long enough, events whose retention has ended, and actions. Returns whether there may be more.
-- When there is none, kinds without an event are deleted. Nothing is deleted for an hour after the clock has jumped
-- ahead: it may be wrong.
CREATE FUNCTION {schema}.purge(p_keep bigint, p_step bigint, p_keep_actions bigint, p_most_actions bigint) RETURNS boolean
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $tower_webhook$
DECLARE
    v_now bigint := {schema}.micros();
    v_seqs bigint[];
    v_keys uuid[];
    v_bodies bigint;
    c_hour CONSTANT bigint := 3600000000;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM {schema}.refuse_isolation(); END IF;
    IF EXISTS (SELECT FROM {schema}.clock WHERE v_now - seen > c_hour OR v_now - steady_since < c_hour) THEN
        RETURN false;
    END IF;
    v_seqs := ARRAY(
        SELECT seq FROM {schema}.ended
        WHERE keep_until IS NULL AND at <= v_now - p_keep ORDER BY at LIMIT p_step FOR UPDATE SKIP LOCKED
    );
    v_bodies := cardinality(v_seqs);
    IF v_bodies > 0 THEN
        WITH emptied AS (
            UPDATE {schema}.events SET body = NULL, headers = NULL, kept = NULL WHERE seq = ANY (v_seqs) RETURNING seq, keep_until
        )
        UPDATE {schema}.ended s SET keep_until = e.keep_until FROM emptied e WHERE s.seq = e.seq;
    END IF;

    v_seqs := ARRAY(
        SELECT seq FROM {schema}.ended
        WHERE keep_until <= v_now ORDER BY keep_until LIMIT p_step FOR UPDATE SKIP LOCKED
    );
    IF cardinality(v_seqs) > 0 THEN
        DELETE FROM {schema}.ended WHERE seq = ANY (v_seqs);
        DELETE FROM {schema}.failures WHERE seq = ANY (v_seqs);
        DELETE FROM {schema}.changed WHERE event = ANY (v_seqs);
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
    END IF;
    IF greatest(v_bodies, cardinality(v_seqs)) = p_step THEN RETURN true; END IF;
    -- A change of all that match is kept while it is running.
    DELETE FROM {schema}.actions
    WHERE number = ANY (ARRAY(
            SELECT number FROM {schema}.actions WHERE state IS DISTINCT FROM 'running'
            ORDER BY number LIMIT p_step FOR UPDATE SKIP LOCKED
        ))
        AND (at < v_now - p_keep_actions OR number <= (SELECT max(number) FROM {schema}.actions) - p_most_actions);
    IF FOUND THEN RETURN true; END IF;
    PERFORM {schema}.purge_kinds();
    RETURN false;
END $tower_webhook$;

-- Puts counts together that are older than so many minutes: those of each of `p_spans` into the next one, but for those of a
-- budget. Deletes those of the last one, and of a budget. `p_kept` has the limits of each series for each span, negative.
-- Returns whether there may be more. As a purge, it does nothing for an hour after a jump of the clock.
CREATE FUNCTION {schema}.purge_counts(p_series text[], p_spans bigint[], p_kept bigint[], p_step bigint) RETURNS boolean
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off
SET lock_timeout = '400ms' AS $tower_webhook$
DECLARE
    v_now bigint := {schema}.micros();
    v_minute bigint := v_now / 60000000;
    v_levels integer := cardinality(p_spans);
    v_span bigint;
    v_old {schema}.counts[];
    v_more boolean := false;
    c_hour CONSTANT bigint := 3600000000;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM {schema}.refuse_isolation(); END IF;
    IF EXISTS (SELECT FROM {schema}.clock WHERE v_now - seen > c_hour OR v_now - steady_since < c_hour) THEN
        RETURN false;
    END IF;
    FOR i IN 1..cardinality(p_series) LOOP FOR j IN 1..v_levels LOOP
        v_old := ARRAY(
            SELECT c FROM {schema}.counts c
            WHERE c.series = p_series[i] AND c.span = p_spans[j]
                AND c.minute < v_minute + p_kept[v_levels * (i - 1) + j]
            ORDER BY c.series, c.span, c.minute LIMIT p_step FOR UPDATE SKIP LOCKED
        );
        v_span := p_spans[j + 1];
        IF p_series[i] <> 'budget' AND v_span IS NOT NULL THEN
            INSERT INTO {schema}.counts AS c (series, span, minute, process, kind, outcome, number)
            SELECT o.series, v_span, o.minute - o.minute % v_span, 0, o.kind, o.outcome,
                CASE WHEN o.series = 'lag' THEN max(o.number) ELSE sum(o.number)::bigint END
            FROM unnest(v_old) o GROUP BY o.series, o.minute - o.minute % v_span, o.kind, o.outcome
            ORDER BY 1, 3, 5, 6
            ON CONFLICT (series, span, minute, process, kind, outcome) DO UPDATE SET number =
                CASE WHEN c.series = 'lag' THEN greatest(c.number, excluded.number) ELSE c.number + excluded.number END;
        END IF;
        DELETE FROM {schema}.counts c USING unnest(v_old) o
        WHERE (c.series, c.span, c.minute, c.process, c.kind, c.outcome)
            = (o.series, o.span, o.minute, o.process, o.kind, o.outcome);
        v_more := v_more OR cardinality(v_old) = p_step;
    END LOOP; END LOOP;
    RETURN v_more;
END $tower_webhook$;
