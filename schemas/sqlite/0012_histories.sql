-- Histories: what agent frameworks store of conversations and runs. Version 12.

-- A history is named by the framework (`kind`) and by that framework's own name for the conversation or run. `version` grows by
-- one with every write, `last` is the last number that an item got. `items` and `size` are the number of its items and the bytes
-- of their bodies.
CREATE TABLE histories (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    kind    TEXT    NOT NULL CHECK (length(kind) BETWEEN 1 AND 64 AND kind NOT GLOB '*[^A-Za-z0-9._:@/-]*'
                                    AND instr(kind, char(0)) = 0),
    name    TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 512 AND instr(name, char(0)) = 0),
    version INTEGER NOT NULL CHECK (version >= 1),
    last    INTEGER NOT NULL CHECK (last >= 0),
    items   INTEGER NOT NULL CHECK (items >= 0),
    size    INTEGER NOT NULL CHECK (size >= 0),
    created INTEGER NOT NULL CHECK (created >= 0),
    updated INTEGER NOT NULL CHECK (updated >= 0),
    meta    TEXT    NOT NULL CHECK (length(meta) <= 65536 AND json_valid(meta) AND json_type(meta) = 'object'),
    UNIQUE (kind, name)
) STRICT;

-- An item of a history. `number`: the order of insertion, which replacing it does not change. `size` and `checksum`: the bytes of
-- the body, and their CRC-32. Part and key together are short enough for an index on PostgreSQL.
CREATE TABLE history_items (
    id       INTEGER PRIMARY KEY,
    history  INTEGER NOT NULL REFERENCES histories (id),
    part     TEXT    NOT NULL CHECK (length(part) <= 512 AND instr(part, char(0)) = 0),
    key      TEXT    NOT NULL CHECK (length(key) BETWEEN 1 AND 512 AND instr(key, char(0)) = 0),
    number   INTEGER NOT NULL CHECK (number >= 1),
    encoding TEXT    NOT NULL CHECK (length(encoding) BETWEEN 1 AND 64 AND instr(encoding, char(0)) = 0),
    checksum INTEGER NOT NULL CHECK (checksum BETWEEN 0 AND 4294967295),
    size     INTEGER NOT NULL,
    created  INTEGER NOT NULL CHECK (created >= 0),
    meta     TEXT    NOT NULL CHECK (length(meta) <= 65536 AND json_valid(meta) AND json_type(meta) = 'object'),
    -- Last, so that reading the columns above never walks the overflow pages of a large body.
    body     BLOB    NOT NULL,
    UNIQUE (history, part, key),
    CHECK (length(CAST(part AS BLOB)) + length(CAST(key AS BLOB)) <= 2048),
    CHECK (size = length(body))
) STRICT;

CREATE UNIQUE INDEX history_items_by_number ON history_items (history, number);

-- The greatest version of the histories that were deleted: a new history starts after it, so that no version is reused.
INSERT INTO counters (name, value) VALUES ('history', 0);
