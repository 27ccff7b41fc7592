-- name: file_case
-- A row that a CHECK constraint refuses; one of which it cannot say anything is not refused. Its text may end in a comment.
WHEN NOT ({check}
) THEN 1;

-- name: file_refused
-- Whether a table has a row that one of its CHECK constraints refuses.
SELECT EXISTS (SELECT 1 FROM {table} WHERE CASE {cases} ELSE 0 END);

-- name: file_acting
-- Triggers, views and virtual tables: they act on tables, or take the place of one. Found by their text, which SQLite
-- executes; type and name are plain columns, which a program can fill with anything.
SELECT sql, type, name FROM sqlite_schema
WHERE sql NOT LIKE 'CREATE TABLE %' AND sql NOT LIKE 'CREATE INDEX %' AND sql NOT LIKE 'CREATE UNIQUE INDEX %';

-- name: file_belongings
-- The indexes and triggers of a table, as they were created, oldest first.
SELECT sql FROM sqlite_schema WHERE tbl_name = ? AND type IN ('index', 'trigger') AND sql IS NOT NULL ORDER BY rowid;

-- name: file_columns
-- The columns that two tables have both, but for those that are computed.
SELECT old.name FROM pragma_table_xinfo(?) AS old, pragma_table_xinfo(?) AS new
WHERE old.name = new.name AND old.hidden = 0 AND new.hidden = 0 ORDER BY new.cid;

-- name: file_copy
-- Fill a rebuilt table.
INSERT INTO {new} ({columns}) SELECT {columns} FROM {table};

-- name: file_sequence
-- The highest id that a table or its rebuilt one has given out; NULL if its ids may be used again.
SELECT max(seq) FROM sqlite_sequence WHERE name IN (?, ?);

-- name: file_forget_sequence
-- Start the ids of a rebuilt table from none.
DELETE FROM sqlite_sequence WHERE name = ?;

-- name: file_set_sequence
-- Continue the ids of a rebuilt table after those of the old one.
INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?);

-- name: file_drop
-- Remove the old table, with its indexes and triggers.
DROP TABLE {table};

-- name: file_rename
-- Give the rebuilt table its name.
ALTER TABLE {new} RENAME TO {table};
