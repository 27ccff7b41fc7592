-- rebuilds: steps, mailboxes
-- Waits of tasks: for a time, a signal, a message; and the values that a task exposes. Version 7.

-- A step, a sub-task, a phase, a checkpoint, an exposed value or a wait of a task. `key`: its name, with a number if the name
-- was used before. `main`: called by the workflow itself, not by one of several concurrent branches. `superseded`: the redo
-- that invalidated it, 0 if it is valid. `due`: of a retry, or when a wait ends at the latest. `seen` and `ending`: see
-- version 4. `message`: the row of the message that a receive took; no reference, because messages are deleted earlier.
CREATE TABLE rebuilt_steps (
    id         INTEGER PRIMARY KEY,
    task       INTEGER NOT NULL REFERENCES tasks (number),
    kind       TEXT    NOT NULL
               CHECK (kind = 'step' OR kind = 'phase' OR kind = 'task' OR kind = 'checkpoint' OR kind = 'sleep'
                      OR kind = 'until' OR kind = 'signal' OR kind = 'receive' OR kind = 'expose'),
    key        TEXT    NOT NULL CHECK (length(key) BETWEEN 1 AND 140 AND key NOT GLOB '*[^A-Za-z0-9._:@/#-]*'
                                       AND instr(key, char(0)) = 0),
    superseded INTEGER NOT NULL DEFAULT 0 CHECK (superseded >= 0),
    name       TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 128 AND name NOT GLOB '*[^A-Za-z0-9._:@/-]*'
                                       AND instr(name, char(0)) = 0),
    position   INTEGER NOT NULL CHECK (position >= 1),
    status     TEXT    NOT NULL
               CHECK (status = 'running' OR status = 'finished' OR status = 'retrying' OR status = 'failed'
                      OR status = 'interrupted' OR status = 'unknown' OR status = 'cancelled' OR status = 'waiting'),
    main       INTEGER NOT NULL DEFAULT 1 CHECK (main = 0 OR main = 1),
    once       INTEGER NOT NULL DEFAULT 0 CHECK (once = 0 OR once = 1),
    attempt    INTEGER NOT NULL DEFAULT 1 CHECK (attempt >= 1),
    failures   INTEGER NOT NULL DEFAULT 0 CHECK (failures >= 0),
    digest     TEXT    NOT NULL DEFAULT '' CHECK (length(digest) <= 64 AND digest NOT GLOB '*[^0-9a-f]*'),
    progress   INTEGER CHECK (progress BETWEEN 0 AND 100),
    note       TEXT,
    child      TEXT    CHECK (length(child) BETWEEN 1 AND 128),
    due        INTEGER CHECK (due >= 0),
    error      TEXT    CHECK (error IS NULL OR (json_valid(error) AND json_type(error) = 'object')),
    started    INTEGER NOT NULL CHECK (started >= 0),
    finished   INTEGER CHECK (finished >= 0),
    checksum   INTEGER,
    validation TEXT    CHECK (validation IS NULL OR json_valid(validation)),
    seen       INTEGER CHECK (seen >= 0),
    ending     INTEGER CHECK (ending >= 0),
    message    INTEGER CHECK (message >= 1),
    -- Last, as everywhere: it may be large.
    result     TEXT    CHECK (result IS NULL OR json_valid(result)),
    UNIQUE (task, kind, key, superseded),
    CHECK ((status = 'finished') = (result IS NOT NULL)),
    CHECK ((result IS NULL) = (checksum IS NULL)),
    CHECK ((status = 'finished' OR status = 'failed' OR status = 'cancelled') = (finished IS NOT NULL)),
    CHECK (status <> 'retrying' OR due IS NOT NULL),
    CHECK (status <> 'failed' OR error IS NOT NULL),
    CHECK ((kind = 'task') = (child IS NOT NULL)),
    CHECK (status <> 'waiting' OR kind = 'signal' OR kind = 'receive'
           OR ((kind = 'sleep' OR kind = 'until') AND due IS NOT NULL)),
    CHECK (message IS NULL OR kind = 'receive')
) STRICT;

-- Mailboxes: of an agent, of the replies to it, of a pool, of a subscription, of a task; a topic has a name here and no
-- messages. A mailbox is never deleted: messages have no index on the mailbox alone, so the foreign key would scan them all.
CREATE TABLE rebuilt_mailboxes (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    kind    TEXT    NOT NULL CHECK (kind IN ('agent', 'replies', 'pool', 'topic', 'subscription', 'task')),
    name    TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 128 AND name NOT GLOB '*[^A-Za-z0-9._:@/-]*'
                                    AND instr(name, char(0)) = 0),
    owner   TEXT    NOT NULL DEFAULT '',
    -- The last epoch of an agent that was deleted: should it come back, its old lives stay fenced.
    epoch   INTEGER NOT NULL DEFAULT 0 CHECK (epoch >= 0),
    created INTEGER NOT NULL CHECK (created >= 0),
    UNIQUE (kind, name, owner),
    CHECK ((owner = '') = (kind IN ('pool', 'topic', 'task')))
) STRICT;

-- A value sent to a task under a name. The task receives those of a name in the order of their ids. `signal_id`: the id that
-- the sender chose, so that a repeated send is one signal. `position`: that of the step that received it, NULL until then.
CREATE TABLE signals (
    id        INTEGER PRIMARY KEY,
    task      INTEGER NOT NULL REFERENCES tasks (number),
    name      TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 128 AND name NOT GLOB '*[^A-Za-z0-9._:@/-]*'
                                      AND instr(name, char(0)) = 0),
    signal_id TEXT    CHECK (length(signal_id) BETWEEN 1 AND 128),
    sender    TEXT    CHECK (length(sender) BETWEEN 1 AND 200),
    position  INTEGER CHECK (position >= 1),
    created   INTEGER NOT NULL CHECK (created >= 0),
    checksum  INTEGER NOT NULL,
    -- Last, as everywhere: it may be large.
    value     TEXT    NOT NULL CHECK (json_valid(value)),
    UNIQUE (task, signal_id)
) STRICT;

CREATE INDEX signals_by_name ON signals (task, name, id);
