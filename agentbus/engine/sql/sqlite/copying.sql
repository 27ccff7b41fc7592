-- name: copy_read_counters
-- The next counters; whom to ring is cached by nobody who has another store open. Differs: they are all in one table.
SELECT name, value FROM counters WHERE name > $1 AND name <> 'topology' ORDER BY name LIMIT $2;

-- name: copy_write_counters
-- A counter goes on from where it was. Differs: they are all in one table.
UPDATE counters SET value = $2 WHERE name = $1;

-- name: copy_read_sequences
-- The last id that each of the next tables gave out. Differs: sqlite_sequence has it, once there was one.
SELECT tables.name, coalesce(seq, 0)
FROM sqlite_schema AS tables LEFT JOIN sqlite_sequence ON sqlite_sequence.name = tables.name
WHERE tables.type = 'table' AND tables.sql LIKE '% AUTOINCREMENT%' AND tables.name > $1
ORDER BY tables.name LIMIT $2;

-- name: copy_open_sequences
-- Make room for the last ids. Differs: a table of which no row was ever written has no place for its own yet.
INSERT INTO sqlite_sequence (name, seq)
SELECT name, 0 FROM sqlite_schema
WHERE type = 'table' AND sql LIKE '% AUTOINCREMENT%' AND name NOT IN (SELECT name FROM sqlite_sequence);

-- name: copy_write_sequences
-- A table gives out only ids after this one. Differs: sqlite_sequence has it.
UPDATE sqlite_sequence SET seq = $2 WHERE name = $1;
