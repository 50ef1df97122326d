-- Keeps what a process has counted, and returns the time. It never waits for long, as a caller has one of few connections.
CREATE FUNCTION {schema}.note_counts(
    p_series text[], p_minutes bigint[], p_processes bigint[], p_kinds text[], p_outcomes text[], p_numbers bigint[],
    p_samples text[], p_keys bytea[]
) RETURNS bigint LANGUAGE plpgsql SET lock_timeout = '400ms' AS $tower_webhook$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM {schema}.refuse_isolation(); END IF;
    INSERT INTO {schema}.counts AS c (series, span, minute, process, kind, outcome, number, sample, key)
    SELECT series, 1, minute, process, kind, outcome, number, nullif(sample, ''), key
    FROM unnest(p_series, p_minutes, p_processes, p_kinds, p_outcomes, p_numbers, p_samples, p_keys)
        AS r (series, minute, process, kind, outcome, number, sample, key)
    ON CONFLICT (series, span, minute, process, kind, outcome) DO UPDATE SET number = greatest(c.number, excluded.number);
    RETURN {schema}.micros();
END $tower_webhook$;

-- Notes what a worker handles. In one order, so that two of them do not wait for each other.
CREATE FUNCTION {schema}.note_handlers(p_worker text, p_handled text[], p_fallbacks boolean[], p_keep bigint[])
RETURNS void LANGUAGE plpgsql SET jit = off SET lock_timeout = '400ms' AS $tower_webhook$
DECLARE
    v_now bigint := {schema}.micros();
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM {schema}.refuse_isolation(); END IF;
    INSERT INTO {schema}.handlers AS h (handled, is_fallback, since, seen, keep_until, worker)
    SELECT handled, is_fallback, v_now, v_now, v_now + keep, p_worker
    FROM unnest(p_handled, p_fallbacks, p_keep) AS r (handled, is_fallback, keep) ORDER BY 1, 2
    ON CONFLICT (handled, is_fallback) DO UPDATE SET
        since = CASE WHEN h.keep_until < excluded.seen THEN excluded.seen ELSE least(h.since, excluded.seen) END,
        seen = excluded.seen, keep_until = excluded.keep_until, worker = excluded.worker;
    DELETE FROM {schema}.handlers WHERE keep_until < v_now;
END $tower_webhook$;
