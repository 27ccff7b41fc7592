-- name: counter_take
-- Advance a counter by $2 and return its new value. Differs: message ids come from a sequence, and listeners are not
-- cached.
SELECT CASE WHEN CAST($1 AS text) = 'topology' THEN 0 ELSE counter_take($1, $2) END;

-- name: counter_raise
-- Raise a counter to at least this value. Differs: only the sequence of message ids is ever raised.
SELECT setval('message_ids', CAST($2 AS bigint)) FROM message_ids
WHERE CAST($1 AS text) = 'message' AND (last_value < $2 OR NOT is_called);

-- name: counter_value
-- The value of a counter. Differs: message ids come from a sequence.
SELECT CASE WHEN CAST($1 AS text) <> 'message' THEN coalesce((SELECT value FROM counters WHERE name = $1), 0)
    WHEN is_called THEN last_value ELSE 0 END
FROM message_ids;

-- name: schema_objects
-- All tables, indexes, triggers and functions. Differs: the catalog, which does not store the text of a statement.
SELECT CASE WHEN relkind = 'i' THEN 'index' WHEN relkind = 'S' THEN 'sequence' ELSE 'table' END, relname::text, ''
FROM pg_class WHERE relnamespace = CAST(quote_ident(current_schema()) AS regnamespace) AND relkind IN ('r', 'i', 'S')
UNION ALL
SELECT 'trigger', tgname::text, '' FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
WHERE relnamespace = CAST(quote_ident(current_schema()) AS regnamespace) AND NOT tgisinternal
UNION ALL
SELECT 'function', proname::text, '' FROM pg_proc WHERE pronamespace = CAST(quote_ident(current_schema()) AS regnamespace);

-- name: bus_size
-- The bytes in use, including free space inside tables. Differs: only SQLite counts pages.
SELECT CAST(coalesce(sum(pg_total_relation_size(oid)), 0) AS bigint) FROM pg_class
WHERE relnamespace = CAST(quote_ident(current_schema()) AS regnamespace) AND relkind = 'r';
