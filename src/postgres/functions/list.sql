-- Whether the text of a failure contains another one, whose ASCII letters are lower case.
CREATE FUNCTION {schema}.contains(p_text bytea, p_part bytea) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $tower_webhook$
    SELECT position(p_part IN decode(lower(encode(p_text, 'escape') COLLATE "C"), 'escape')) > 0
$tower_webhook$;
