-- What the HTTP API and its dashboard need. Version 9, on PostgreSQL.

-- The wall time of the last delivery; NULL until there is one, and for deliveries before version 9.
ALTER TABLE messages ADD COLUMN leased_at bigint CHECK (leased_at >= 0);

-- Tokens of HTTP clients: the SHA-256 of each, what it permits (read, operate, or agent:<id> to act as one agent only), and the
-- person who is responsible for it. Export, copy and archive leave them out: a copy of the bus must not admit anyone.
CREATE TABLE tokens (
    id       text COLLATE "C" NOT NULL PRIMARY KEY CHECK (id ~ '^[0-9a-z-]{1,32}$'),
    hash     text COLLATE "C" NOT NULL UNIQUE CHECK (hash ~ '^[0-9a-f]{64}$'),
    role     text COLLATE "C" NOT NULL CHECK (role IN ('read', 'operate') OR role LIKE 'agent:_%'),
    operator text COLLATE "C" NOT NULL CHECK (length(operator) BETWEEN 1 AND 200),
    created  bigint NOT NULL CHECK (created >= 0),
    expires  bigint CHECK (expires >= 0)
);
