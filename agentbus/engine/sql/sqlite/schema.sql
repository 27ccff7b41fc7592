-- name: schema_case
-- Match a row that violates a CHECK constraint; one that evaluates to NULL does not. The text may end in a comment.
WHEN NOT ({check}
) THEN 1;

-- name: schema_refused
-- Whether a table has a row that violates one of its CHECK constraints.
SELECT EXISTS (SELECT 1 FROM {table} WHERE CASE {cases} ELSE 0 END);

-- name: schema_acting
-- Triggers, views and virtual tables, which act on tables or replace one. Found by their text, which SQLite executes;
-- type and name are plain columns that a program can set to anything.
SELECT sql, type, name FROM sqlite_schema
WHERE sql NOT LIKE 'CREATE TABLE %' AND sql NOT LIKE 'CREATE INDEX %' AND sql NOT LIKE 'CREATE UNIQUE INDEX %';

-- name: schema_belongings
-- The indexes and triggers of a table, as they were created, oldest first.
SELECT sql FROM sqlite_schema WHERE tbl_name = ? AND type IN ('index', 'trigger') AND sql IS NOT NULL ORDER BY rowid;

-- name: schema_columns
-- The columns that two tables share, except computed ones.
SELECT old.name FROM pragma_table_xinfo(?) AS old, pragma_table_xinfo(?) AS new
WHERE old.name = new.name AND old.hidden = 0 AND new.hidden = 0 ORDER BY new.cid;

-- name: schema_copy
-- Fill a rebuilt table.
INSERT INTO {new} ({columns}) SELECT {columns} FROM {table};

-- name: schema_sequence
-- The highest id that a table or its rebuilt copy has issued; NULL if ids may be reused.
SELECT max(seq) FROM sqlite_sequence WHERE name IN (?, ?);

-- name: schema_forget_sequence
-- Reset the ids of a rebuilt table.
DELETE FROM sqlite_sequence WHERE name = ?;

-- name: schema_set_sequence
-- Continue the ids of a rebuilt table after those of the old one.
INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?);

-- name: schema_drop
-- Remove the old table, with its indexes and triggers.
DROP TABLE {table};

-- name: schema_rename
-- Rename the rebuilt table.
ALTER TABLE {new} RENAME TO {table};
