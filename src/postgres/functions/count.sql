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
