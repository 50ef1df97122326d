-- The size of what is left. Of a large table, a sample of some 1,000 pages: within some percent. An event without its body
-- takes about 400 bytes, with its key and what the indexes have of it.
CREATE FUNCTION {schema}.size(p_table text) RETURNS bigint LANGUAGE plpgsql VOLATILE SET jit = off SET lock_timeout = '400ms'
AS $tower_webhook$
DECLARE
    v_pages float8 := greatest(pg_relation_size(p_table::regclass) / current_setting('block_size')::bigint, 1);
    v_share float8 := CASE WHEN v_pages <= 2000 THEN 100 ELSE 100000 / v_pages END;
    v_bytes bigint;
BEGIN
    -- In the text, as the planner takes a share that it does not know for a tenth of the table.
    EXECUTE 'SELECT sum(400 + coalesce(pg_column_size(body), 0) + coalesce(pg_column_size(headers), 0) + coalesce(pg_column_size(kept), 0))
        FROM ' || p_table || ' TABLESAMPLE SYSTEM (' || v_share || ')' INTO v_bytes;
    RETURN coalesce(v_bytes, 0) * 100 / v_share;
END $tower_webhook$;
