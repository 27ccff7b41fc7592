-- name: copy_read_counters
-- The next counters, except those of listeners and of the directory, which each store counts itself. Differs: all
-- counters are rows.
SELECT name, value FROM counters WHERE name > $1 AND name NOT IN ('directory', 'topology') ORDER BY name LIMIT $2;

-- name: copy_write_counters
-- Set a counter to its copied value. Differs: all counters are rows.
UPDATE counters SET value = $2 WHERE name = $1 AND name <> 'directory';

-- name: copy_read_sequences
-- The last id that each of the next tables issued. Differs: sqlite_sequence, which has a row after the first insert.
SELECT tables.name, coalesce(seq, 0)
FROM sqlite_schema AS tables LEFT JOIN sqlite_sequence ON sqlite_sequence.name = tables.name
WHERE tables.type = 'table' AND tables.sql LIKE '% AUTOINCREMENT%' AND tables.name > $1
ORDER BY tables.name LIMIT $2;

-- name: copy_open_sequences
-- Prepare the copy of sequences. Differs: a table without an insert has no row in sqlite_sequence.
INSERT INTO sqlite_sequence (name, seq)
SELECT name, 0 FROM sqlite_schema
WHERE type = 'table' AND sql LIKE '% AUTOINCREMENT%' AND name NOT IN (SELECT name FROM sqlite_sequence);

-- name: copy_write_sequences
-- Set the last id that a table issued. Differs: sqlite_sequence.
UPDATE sqlite_sequence SET seq = $2 WHERE name = $1;
