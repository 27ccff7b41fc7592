-- name: copy_read_counters
-- The next counters, except that of the directory, which each store counts itself. Differs: message ids come from a
-- sequence, and listeners are not cached.
SELECT name, value FROM (
    SELECT name, value FROM counters WHERE name NOT IN ('message', 'directory')
    UNION ALL SELECT 'message', CASE WHEN is_called THEN last_value ELSE 0 END FROM message_ids
) AS numbers
WHERE name > $1 ORDER BY name LIMIT $2;

-- name: copy_write_counters
-- Set a counter to its copied value. Differs: message ids come from a sequence.
WITH changed AS (UPDATE counters SET value = $2 WHERE name = $1 AND name NOT IN ('message', 'directory'))
SELECT setval('message_ids', greatest(CAST($2 AS bigint), 1), $2 > 0) WHERE CAST($1 AS text) = 'message';

-- name: copy_read_sequences
-- The last number that each of the next tables issued. Differs: every numbered table has a sequence, including tables
-- whose numbers do not matter elsewhere.
SELECT name, value FROM (
    SELECT CAST(relname AS text) COLLATE "C" AS name, coalesce(pg_sequence_last_value(
        pg_get_serial_sequence(quote_ident(CAST(relname AS text)), CAST(attname AS text))::regclass), 0) AS value
    FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
    WHERE relnamespace = CAST(quote_ident(current_schema()) AS regnamespace) AND relkind = 'r' AND attidentity <> ''
        AND relname NOT IN ('state', 'participants', 'steps', 'approvals', 'signals', 'history_items')
) AS tables
WHERE name > $1 ORDER BY name LIMIT $2;

-- name: copy_open_sequences
-- Prepare the copy of sequences. Differs: sequences that are not copied continue after the last row.
SELECT setval(pg_get_serial_sequence('state', 'id'), max(id)) FROM state HAVING max(id) IS NOT NULL
UNION ALL SELECT setval(pg_get_serial_sequence('steps', 'id'), max(id)) FROM steps HAVING max(id) IS NOT NULL
UNION ALL SELECT setval(pg_get_serial_sequence('approvals', 'id'), max(id)) FROM approvals HAVING max(id) IS NOT NULL
UNION ALL SELECT setval(pg_get_serial_sequence('signals', 'id'), max(id)) FROM signals HAVING max(id) IS NOT NULL
UNION ALL SELECT setval(pg_get_serial_sequence('history_items', 'id'), max(id)) FROM history_items
    HAVING max(id) IS NOT NULL;

-- name: copy_write_sequences
-- Set the last number that a table issued. Differs: it has a sequence.
SELECT setval(pg_get_serial_sequence(quote_ident(CAST($1 AS text)), CAST(attname AS text)), greatest(CAST($2 AS bigint), 1),
    $2 > 0)
FROM pg_attribute WHERE attrelid = CAST(quote_ident(CAST($1 AS text)) AS regclass) AND attidentity <> '';
