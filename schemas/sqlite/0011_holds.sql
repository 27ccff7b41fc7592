-- rebuilds: messages
-- The loop guard: threads of messages among agents, and the messages that it holds for a person. Version 11.

-- A scheduled message without a due time is held: it has a row in holds, and it is in a thread. Until version 11 every
-- scheduled message had a due time.
CREATE TABLE rebuilt_messages (
    id           INTEGER PRIMARY KEY,
    message_id   TEXT    CHECK (length(message_id) BETWEEN 1 AND 128),
    mailbox      INTEGER NOT NULL REFERENCES mailboxes (id),
    sender       TEXT    NOT NULL CHECK (length(sender) BETWEEN 1 AND 128),
    type         TEXT    NOT NULL CHECK (type <> ''),
    checksum     INTEGER NOT NULL,
    priority     INTEGER NOT NULL CHECK (priority BETWEEN 0 AND 9),
    status       TEXT    NOT NULL CHECK (status = 'queued' OR status = 'leased' OR status = 'acked'
                                         OR status = 'scheduled' OR status = 'dead' OR status = 'expired'),
    attempts     INTEGER NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    max_attempts INTEGER NOT NULL CHECK (max_attempts BETWEEN 1 AND 1000),
    lease        INTEGER NOT NULL DEFAULT 0 CHECK (lease >= 0),
    holder       TEXT,
    lease_until  INTEGER,
    due          INTEGER,
    expires      INTEGER,
    correlation  TEXT    CHECK (length(correlation) BETWEEN 1 AND 128),
    reply_to     INTEGER,
    session      TEXT    CHECK (length(session) BETWEEN 1 AND 128),
    error        TEXT,
    created      INTEGER NOT NULL,
    finished     INTEGER,
    -- After the others, so that reading the columns above never walks the overflow pages of a large payload. Headers and the
    -- last delivery are read with it only.
    payload      TEXT    NOT NULL CHECK (json_valid(payload)),
    headers      TEXT
                 CHECK (headers IS NULL OR (length(headers) <= 4096 AND json_valid(headers) AND json_type(headers) = 'object')),
    leased_at    INTEGER CHECK (leased_at >= 0),
    CHECK (status <> 'leased' OR (holder IS NOT NULL AND lease_until IS NOT NULL)),
    CHECK (status <> 'scheduled' OR due IS NOT NULL OR correlation IS NOT NULL),
    CHECK ((status = 'acked' OR status = 'dead' OR status = 'expired') = (finished IS NOT NULL))
) STRICT;

-- Messages among agents that share a correlation. `opened`: the messages before the first counted one. `messages`: those
-- counted since `since`, when the count started. `agents`: who sent them, each name after a comma. `held`: 1 once the bound was
-- reached; every further message is held until a person releases the thread or writes in it.
CREATE TABLE threads (
    thread   TEXT    NOT NULL PRIMARY KEY CHECK (length(thread) BETWEEN 1 AND 128),
    opened   INTEGER NOT NULL DEFAULT 0 CHECK (opened >= 0),
    messages INTEGER NOT NULL CHECK (messages >= 0),
    held     INTEGER NOT NULL DEFAULT 0 CHECK (held = 0 OR held = 1),
    since    INTEGER NOT NULL CHECK (since >= 0),
    updated  INTEGER NOT NULL CHECK (updated >= 0),
    agents   TEXT    NOT NULL
) STRICT, WITHOUT ROWID;

-- The messages that wait for a person. `message`: a row of messages, no reference: one that expires or becomes a dead letter is
-- finished, and its hold is deleted later. `due`: the due time that its sender gave it.
CREATE TABLE holds (
    message INTEGER NOT NULL PRIMARY KEY,
    thread  TEXT    NOT NULL CHECK (length(thread) BETWEEN 1 AND 128),
    due     INTEGER CHECK (due >= 0),
    created INTEGER NOT NULL CHECK (created >= 0)
) STRICT;

CREATE INDEX holds_by_thread ON holds (thread, message);
