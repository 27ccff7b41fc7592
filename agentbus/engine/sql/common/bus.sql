-- name: counter_take
-- Advance a counter by $2 and return its new value.
UPDATE counters SET value = value + $2 WHERE name = $1 RETURNING value;

-- name: meta_get
-- One fact about the bus.
SELECT value FROM meta WHERE key = $1;

-- name: meta_set
-- Store a fact about the bus.
INSERT INTO meta (key, value) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: counter_raise
-- Raise a counter to at least this value.
UPDATE counters SET value = $2 WHERE name = $1 AND value < $2;

-- name: wall_newest
-- The wall time of the last event and of the last message.
SELECT coalesce(max(at), 0) FROM (
    SELECT at FROM events WHERE id = (SELECT max(id) FROM events)
    UNION ALL SELECT created FROM messages WHERE id = (SELECT max(id) FROM messages)
) AS newest;

-- name: bus_last_rows
-- The newest row id of each table that only grows.
SELECT
    (SELECT coalesce(max(id), 0) FROM messages), (SELECT coalesce(max(id), 0) FROM checkpoints),
    (SELECT coalesce(max(id), 0) FROM documents), (SELECT coalesce(max(id), 0) FROM state),
    (SELECT coalesce(max(id), 0) FROM events), (SELECT coalesce(max(id), 0) FROM histories),
    (SELECT coalesce(max(id), 0) FROM history_items);

-- name: counter_set
-- Set a counter.
INSERT INTO counters (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: counter_drop
-- Delete a counter.
DELETE FROM counters WHERE name = $1;

-- name: bus_quotas
-- The quotas of the bus, if it has any.
SELECT value FROM meta WHERE key = 'quotas';

-- name: counter_directory
-- The number of changes of the directory; on SQLite also that of the listeners.
SELECT value/* sqlite: , (SELECT value FROM counters WHERE name = 'topology') */ FROM counters WHERE name = 'directory';

-- name: counter_value
-- The value of a counter.
SELECT value FROM counters WHERE name = $1;
