-- name: counter_take
-- Move a counter on by so many, and give its new value. Differs: message ids come from a sequence; nobody caches whom to
-- ring.
SELECT CASE WHEN CAST($1 AS text) = 'topology' THEN 0 ELSE counter_take($1, $2) END;

-- name: counter_raise
-- A counter is at least this. Differs: the only one that is ever raised is the sequence of message ids.
SELECT setval('message_ids', CAST($2 AS bigint)) FROM message_ids
WHERE CAST($1 AS text) = 'message' AND (last_value < $2 OR NOT is_called);

-- name: counter_value
-- What a counter stands at. Differs: message ids come from a sequence.
SELECT CASE WHEN CAST($1 AS text) <> 'message' THEN coalesce((SELECT value FROM counters WHERE name = $1), 0)
    WHEN is_called THEN last_value ELSE 0 END
FROM message_ids;

-- name: schema_objects
-- Every table, index, trigger and function that somebody made. Differs: each engine has a catalogue of its own, and this one
-- does not keep the words in which a thing was made.
SELECT CASE WHEN relkind = 'i' THEN 'index' WHEN relkind = 'S' THEN 'sequence' ELSE 'table' END, relname::text, ''
FROM pg_class WHERE relnamespace = CAST(current_schema() AS regnamespace) AND relkind IN ('r', 'i', 'S')
UNION ALL
SELECT 'trigger', tgname::text, '' FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
WHERE relnamespace = CAST(current_schema() AS regnamespace) AND NOT tgisinternal
UNION ALL
SELECT 'function', proname::text, '' FROM pg_proc WHERE pronamespace = CAST(current_schema() AS regnamespace);

-- name: bus_size
-- Bytes that are in use, with what is free in between. Differs: only SQLite counts pages.
SELECT CAST(coalesce(sum(pg_total_relation_size(oid)), 0) AS bigint) FROM pg_class
WHERE relnamespace = CAST(current_schema() AS regnamespace) AND relkind = 'r';
