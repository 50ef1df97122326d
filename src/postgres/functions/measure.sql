-- The size of what is left. Of a large table, a sample of some 1,000 pages: within some percent. An event without its body
-- takes about 400 bytes, with its key and what the indexes have of it.
CREATE FUNCTION {schema}.size(p_table text) RETURNS bigint LANGUAGE sql VOLATILE SET jit = off SET lock_timeout = '400ms'
AS $tower_webhook$
    WITH pages AS MATERIALIZED (
        SELECT greatest(pg_relation_size(p_table::regclass) / current_setting('block_size')::bigint, 1)::float8 AS pages
    ), share AS MATERIALIZED (
        SELECT CASE WHEN pages <= 2000 THEN 100 ELSE 100000 / pages END AS share FROM pages
    )
    SELECT (
        (SELECT coalesce(sum(400 + coalesce(pg_column_size(body), 0) + coalesce(pg_column_size(headers), 0)), 0)
            FROM {schema}.events TABLESAMPLE SYSTEM ((SELECT share FROM share)))
        * 100 / (SELECT share FROM share)
    )::bigint
$tower_webhook$;
