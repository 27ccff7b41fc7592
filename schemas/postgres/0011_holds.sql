-- The loop guard: threads of messages among agents, and the messages that it holds for a person. Version 11, on PostgreSQL.

-- A scheduled message without a due time is held: it has a row in holds, and it is in a thread. Until version 11 every
-- scheduled message had a due time.
ALTER TABLE messages DROP CONSTRAINT messages_check1;
ALTER TABLE messages ADD CHECK (status <> 'scheduled' OR due IS NOT NULL OR correlation IS NOT NULL);

-- Messages among agents that share a correlation. `opened`: the messages before the first counted one. `messages`: those
-- counted since `since`, when the count started. `agents`: who sent them, each name after a comma. `held`: 1 once the bound was
-- reached; every further message is held until a person releases the thread or writes in it.
CREATE TABLE threads (
    thread   text COLLATE "C" NOT NULL PRIMARY KEY CHECK (length(thread) BETWEEN 1 AND 128),
    opened   bigint NOT NULL DEFAULT 0 CHECK (opened >= 0),
    messages bigint NOT NULL CHECK (messages >= 0),
    held     bigint NOT NULL DEFAULT 0 CHECK (held = 0 OR held = 1),
    since    bigint NOT NULL CHECK (since >= 0),
    updated  bigint NOT NULL CHECK (updated >= 0),
    agents   text COLLATE "C" NOT NULL
);

-- The messages that wait for a person. `message`: a row of messages, no reference: one that expires or becomes a dead letter is
-- finished, and its hold is deleted later. `due`: the due time that its sender gave it.
CREATE TABLE holds (
    message bigint NOT NULL PRIMARY KEY,
    thread  text COLLATE "C" NOT NULL CHECK (length(thread) BETWEEN 1 AND 128),
    due     bigint CHECK (due >= 0),
    created bigint NOT NULL CHECK (created >= 0)
);

CREATE INDEX holds_by_thread ON holds (thread, message);
