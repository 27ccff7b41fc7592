-- Receipts of messages, how agents can be woken, and the type of steering messages. Version 10.

-- When a message was delivered into a context, which is an incarnation of an agent and (if it is known) the session of its
-- client. `channel`: by what it was delivered (receive, hook, mcp, http …). `at`: the wall time of the first delivery. No
-- reference to the message: its receipts are deleted together with it.
CREATE TABLE receipts (
    message INTEGER NOT NULL CHECK (message >= 1),
    agent   TEXT    NOT NULL CHECK (length(agent) BETWEEN 1 AND 128),
    epoch   INTEGER NOT NULL CHECK (epoch >= 0),
    client  TEXT    NOT NULL DEFAULT '' CHECK (length(client) <= 200),
    channel TEXT    NOT NULL CHECK (length(channel) BETWEEN 1 AND 32 AND channel NOT GLOB '*[^a-z0-9_-]*'),
    at      INTEGER NOT NULL CHECK (at >= 0),
    PRIMARY KEY (message, agent, epoch, client)
) STRICT, WITHOUT ROWID;

-- What the adapters of an incarnation declared: they deliver messages after every tool call, or with every turn.
CREATE TABLE reach (
    agent    TEXT    NOT NULL REFERENCES agents (id) ON DELETE CASCADE,
    channel  TEXT    NOT NULL CHECK (length(channel) BETWEEN 1 AND 32 AND channel NOT GLOB '*[^a-z0-9_-]*'),
    epoch    INTEGER NOT NULL CHECK (epoch >= 0),
    wakes    TEXT    NOT NULL CHECK (wakes IN ('tool', 'turn')),
    declared INTEGER NOT NULL CHECK (declared >= 0),
    PRIMARY KEY (agent, channel)
) STRICT, WITHOUT ROWID;

INSERT INTO vocabulary (kind, name, builtin, description, created)
VALUES ('message', 'steer', 1, 'a person directs an agent at its next tool call', 0)
ON CONFLICT (kind, name) DO UPDATE SET builtin = 1, description = excluded.description, schema = NULL;
