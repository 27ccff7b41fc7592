-- What the HTTP API and its dashboard need. Version 9.

-- The wall time of the last delivery; NULL until there is one, and for deliveries before version 9. The column is stored after
-- the payload: read it only in queries that read the payload.
ALTER TABLE messages ADD COLUMN leased_at INTEGER CHECK (leased_at >= 0);

-- Tokens of HTTP clients: the SHA-256 of each, what it permits (read, operate, or agent:<id> to act as one agent only), and the
-- person who is responsible for it. Export, copy and archive leave them out: a copy of the bus must not admit anyone.
CREATE TABLE tokens (
    id       TEXT    NOT NULL PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 32 AND id NOT GLOB '*[^0-9a-z-]*'),
    hash     TEXT    NOT NULL UNIQUE CHECK (length(hash) = 64 AND hash NOT GLOB '*[^0-9a-f]*'),
    role     TEXT    NOT NULL CHECK (role IN ('read', 'operate') OR role GLOB 'agent:?*'),
    operator TEXT    NOT NULL CHECK (length(operator) BETWEEN 1 AND 200),
    created  INTEGER NOT NULL CHECK (created >= 0),
    expires  INTEGER CHECK (expires >= 0)
) STRICT, WITHOUT ROWID;
