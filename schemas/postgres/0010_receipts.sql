-- Receipts of messages, how agents can be woken, and the type of steering messages. Version 10, on PostgreSQL.

-- When a message was delivered into a context, which is an incarnation of an agent and (if it is known) the session of its
-- client. `channel`: by what it was delivered (receive, hook, mcp, http …). `at`: the wall time of the first delivery. No
-- reference to the message: its receipts are deleted together with it.
CREATE TABLE receipts (
    message bigint NOT NULL CHECK (message >= 1),
    agent   text COLLATE "C" NOT NULL CHECK (length(agent) BETWEEN 1 AND 128),
    epoch   bigint NOT NULL CHECK (epoch >= 0),
    client  text COLLATE "C" NOT NULL DEFAULT '' CHECK (length(client) <= 200),
    channel text COLLATE "C" NOT NULL CHECK (channel ~ '^[a-z0-9_-]{1,32}$'),
    at      bigint NOT NULL CHECK (at >= 0),
    PRIMARY KEY (message, agent, epoch, client)
);

-- What the adapters of an incarnation declared: they deliver messages after every tool call, or with every turn.
CREATE TABLE reach (
    agent    text COLLATE "C" NOT NULL REFERENCES agents (id) ON DELETE CASCADE,
    channel  text COLLATE "C" NOT NULL CHECK (channel ~ '^[a-z0-9_-]{1,32}$'),
    epoch    bigint NOT NULL CHECK (epoch >= 0),
    wakes    text COLLATE "C" NOT NULL CHECK (wakes IN ('tool', 'turn')),
    declared bigint NOT NULL CHECK (declared >= 0),
    PRIMARY KEY (agent, channel)
);

INSERT INTO vocabulary (kind, name, builtin, description, created)
VALUES ('message', 'steer', 1, 'a person directs an agent at its next tool call', 0)
ON CONFLICT (kind, name) DO UPDATE SET builtin = 1, description = excluded.description, schema = NULL;
