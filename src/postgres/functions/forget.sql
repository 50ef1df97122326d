-- Deletes what events of a chat contain, in a step: from one number to another one, or to the newest of now. Lanes are
-- locked until the end of the step. Returns how many bodies were deleted, and the numbers of the next step.
CREATE FUNCTION {schema}.forget(
    p_chat_lane bigint, p_chat bytea, p_first bigint, p_last bigint, p_step bigint, p_who text, p_reason text,
    p_digest text,
    OUT o_bodies bigint, OUT o_next bigint, OUT o_last bigint
) LANGUAGE plpgsql SET jit = off SET enable_seqscan = off SET lock_timeout = '400ms' AS $tower_webhook$
DECLARE
    v_seqs bigint[];
    v_seq bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM {schema}.refuse_isolation(); END IF;
    o_bodies := 0;
    o_last := coalesce(p_last, (SELECT max(seq) FROM {schema}.events));
    v_seqs := ARRAY(
        SELECT seq FROM {schema}.events
        WHERE chat_lane BETWEEN p_chat_lane AND p_chat_lane AND chat = p_chat AND seq BETWEEN p_first AND o_last
        ORDER BY chat_lane, seq LIMIT p_step + 1
    );
    o_next := v_seqs[p_step + 1];
    UPDATE {schema}.actions SET
        chat = NULL, about = NULL, reason = '', state = CASE WHEN state = 'running' THEN 'cancelled' ELSE state END
    WHERE chat = p_chat;
    FOREACH v_seq IN ARRAY v_seqs[:p_step] LOOP
        -- Now it is settled, and its row of `ended` is locked, unless a purge was first.
        PERFORM {schema}.discard(v_seq, NULL);
        UPDATE {schema}.ended s SET keep_until = e.keep_until FROM {schema}.events e
        WHERE s.seq = v_seq AND e.seq = v_seq;
        UPDATE {schema}.actions SET event = NULL, reason = ''
        WHERE number IN (SELECT action FROM {schema}.changed WHERE event = v_seq) AND event = v_seq;
        DELETE FROM {schema}.changed WHERE event = v_seq;
        UPDATE {schema}.counts c SET sample = NULL, key = NULL
        WHERE c.key IS NOT NULL AND c.key = (SELECT e.key FROM {schema}.events e WHERE e.seq = v_seq);
        -- Their texts may quote the body.
        DELETE FROM {schema}.failures WHERE seq = v_seq;
        UPDATE {schema}.events SET body = NULL, headers = NULL, kept = NULL WHERE seq = v_seq AND body IS NOT NULL;
        IF FOUND THEN o_bodies := o_bodies + 1; END IF;
    END LOOP;
    INSERT INTO {schema}.actions (at, who, reason, what, about, changed)
    VALUES ({schema}.micros(), p_who, p_reason, 'forget', p_digest, o_bodies);
END $tower_webhook$;
