-- Durable tasks, their steps, and the decisions of people. Version 2.

-- A task is leased like a message: (number, lease) identifies one delivery to one incarnation of an agent. `due`: 0 if a worker
-- may claim it now, otherwise the wall time from which one may. `halting`: halt it before its next step. `waits`: what a waiting
-- task waits for. `notes`: what a redo passes to the steps that it names. `generation` counts the redos; steps that a redo
-- invalidates are kept, marked with its number.
CREATE TABLE tasks (
    number      INTEGER PRIMARY KEY AUTOINCREMENT,
    id          TEXT    NOT NULL UNIQUE
                CHECK (length(id) BETWEEN 1 AND 128 AND id NOT GLOB '*[^A-Za-z0-9._:@/-]*' AND instr(id, char(0)) = 0),
    workflow    TEXT    NOT NULL
                CHECK (length(workflow) BETWEEN 1 AND 128 AND workflow NOT GLOB '*[^A-Za-z0-9._:@/-]*'
                       AND instr(workflow, char(0)) = 0),
    name        TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    session     TEXT    REFERENCES sessions (id),
    parent      TEXT    CHECK (length(parent) BETWEEN 1 AND 128),
    status      TEXT    NOT NULL
                CHECK (status = 'running' OR status = 'pending' OR status = 'completed' OR status = 'waiting'
                       OR status = 'failed' OR status = 'halted' OR status = 'stopped'),
    phase       TEXT
                CHECK (length(phase) BETWEEN 1 AND 128 AND phase NOT GLOB '*[^A-Za-z0-9._:@/-]*'
                       AND instr(phase, char(0)) = 0),
    auto        INTEGER NOT NULL DEFAULT 0 CHECK (auto IN (0, 1)),
    halting     INTEGER NOT NULL DEFAULT 0 CHECK (halting IN (0, 1)),
    progress    INTEGER NOT NULL DEFAULT 0 CHECK (progress BETWEEN 0 AND 100),
    note        TEXT,
    generation  INTEGER NOT NULL DEFAULT 0 CHECK (generation >= 0),
    holder      TEXT    CHECK (length(holder) BETWEEN 1 AND 128),
    lease       INTEGER NOT NULL DEFAULT 0 CHECK (lease >= 0),
    lease_until INTEGER,
    due         INTEGER CHECK (due >= 0),
    waits       TEXT    NOT NULL DEFAULT '[]' CHECK (json_valid(waits) AND json_type(waits) = 'array'),
    restarts    INTEGER NOT NULL DEFAULT 0 CHECK (restarts BETWEEN 0 AND 1000),
    backoff     INTEGER NOT NULL DEFAULT 1000 CHECK (backoff >= 0),
    restarted   INTEGER NOT NULL DEFAULT 0 CHECK (restarted >= 0),
    error       TEXT    CHECK (error IS NULL OR (json_valid(error) AND json_type(error) = 'object')),
    created     INTEGER NOT NULL CHECK (created >= 0),
    started     INTEGER CHECK (started >= 0),
    updated     INTEGER NOT NULL CHECK (updated >= 0),
    ended       INTEGER CHECK (ended >= 0),
    notes       TEXT    NOT NULL DEFAULT '{}' CHECK (json_valid(notes) AND json_type(notes) = 'object'),
    context     TEXT    NOT NULL DEFAULT '{}' CHECK (json_valid(context) AND json_type(context) = 'object'),
    settings    TEXT    NOT NULL DEFAULT '{}' CHECK (json_valid(settings) AND json_type(settings) = 'object'),
    checksum    INTEGER NOT NULL,
    result_sum  INTEGER,
    -- Last, so that reading the columns above never walks the overflow pages of large ones.
    arguments   TEXT    NOT NULL CHECK (json_valid(arguments) AND json_type(arguments) = 'object'),
    result      TEXT    CHECK (result IS NULL OR json_valid(result)),
    CHECK ((status = 'running') = (holder IS NOT NULL)),
    CHECK ((holder IS NULL) = (lease_until IS NULL)),
    CHECK (halting = 0 OR status = 'running'),
    CHECK (status <> 'pending' OR due IS NOT NULL),
    CHECK (due IS NULL OR status = 'pending' OR (status = 'waiting' AND due > 0)),
    CHECK ((status = 'completed' OR status = 'failed' OR status = 'stopped') = (ended IS NOT NULL)),
    CHECK ((status = 'completed') = (result IS NOT NULL)),
    CHECK ((result IS NULL) = (result_sum IS NULL)),
    CHECK (status <> 'failed' OR error IS NOT NULL)
) STRICT;

-- These serve the claim exactly: tasks that are ready, that become due, and whose lease has ended.
CREATE INDEX tasks_ready ON tasks (workflow, number) WHERE due = 0;
CREATE INDEX tasks_due ON tasks (due) WHERE due > 0;
CREATE INDEX tasks_leased ON tasks (lease_until, holder) WHERE status = 'running';
CREATE INDEX tasks_by_status ON tasks (status, number);
CREATE INDEX tasks_by_parent ON tasks (parent) WHERE parent IS NOT NULL;
CREATE INDEX tasks_by_session ON tasks (session, number) WHERE session IS NOT NULL;
-- For retention: the oldest finished tasks.
CREATE INDEX tasks_by_end ON tasks (ended, number) WHERE ended IS NOT NULL;

-- A step, a sub-task, a phase or a checkpoint of a task. `key`: its name, with a number if the name was used before.
-- `main`: called by the workflow itself, not by one of several concurrent branches. `superseded`: the redo that invalidated
-- it, 0 if it is valid.
CREATE TABLE steps (
    id         INTEGER PRIMARY KEY,
    task       INTEGER NOT NULL REFERENCES tasks (number),
    kind       TEXT    NOT NULL CHECK (kind = 'step' OR kind = 'phase' OR kind = 'task' OR kind = 'checkpoint'),
    key        TEXT    NOT NULL CHECK (length(key) BETWEEN 1 AND 140 AND key NOT GLOB '*[^A-Za-z0-9._:@/#-]*'
                                       AND instr(key, char(0)) = 0),
    superseded INTEGER NOT NULL DEFAULT 0 CHECK (superseded >= 0),
    name       TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 128 AND name NOT GLOB '*[^A-Za-z0-9._:@/-]*'
                                       AND instr(name, char(0)) = 0),
    position   INTEGER NOT NULL CHECK (position >= 1),
    status     TEXT    NOT NULL
               CHECK (status = 'running' OR status = 'finished' OR status = 'retrying' OR status = 'failed'
                      OR status = 'interrupted' OR status = 'unknown' OR status = 'cancelled'),
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
    -- Last, as everywhere: it may be large.
    result     TEXT    CHECK (result IS NULL OR json_valid(result)),
    UNIQUE (task, kind, key, superseded),
    CHECK ((status = 'finished') = (result IS NOT NULL)),
    CHECK ((result IS NULL) = (checksum IS NULL)),
    CHECK ((status = 'finished' OR status = 'failed' OR status = 'cancelled') = (finished IS NOT NULL)),
    CHECK (status <> 'retrying' OR due IS NOT NULL),
    CHECK (status <> 'failed' OR error IS NOT NULL),
    CHECK ((kind = 'task') = (child IS NOT NULL))
) STRICT;

-- A question to a person, and the answer.
CREATE TABLE approvals (
    id         INTEGER PRIMARY KEY,
    task       INTEGER NOT NULL REFERENCES tasks (number),
    key        TEXT    NOT NULL CHECK (length(key) BETWEEN 1 AND 140 AND key NOT GLOB '*[^A-Za-z0-9._:@/#-]*'
                                       AND instr(key, char(0)) = 0),
    superseded INTEGER NOT NULL DEFAULT 0 CHECK (superseded >= 0),
    name       TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 128 AND name NOT GLOB '*[^A-Za-z0-9._:@/-]*'
                                       AND instr(name, char(0)) = 0),
    position   INTEGER NOT NULL CHECK (position >= 1),
    status     TEXT    NOT NULL CHECK (status IN ('open', 'approved', 'rejected', 'expired')),
    auto       INTEGER NOT NULL DEFAULT 0 CHECK (auto IN (0, 1)),
    notify     TEXT    CHECK (length(notify) BETWEEN 1 AND 140),
    expires    INTEGER CHECK (expires >= 0),
    created    INTEGER NOT NULL CHECK (created >= 0),
    decided    INTEGER CHECK (decided >= 0),
    decided_by TEXT    CHECK (length(decided_by) BETWEEN 1 AND 200),
    reason     TEXT,
    checksum   INTEGER NOT NULL,
    shown      TEXT    NOT NULL CHECK (json_valid(shown)),
    UNIQUE (task, key, superseded),
    CHECK ((status = 'open') = (decided IS NULL)),
    -- A person's decision has a person's name; only an approval may be passed through.
    CHECK (status NOT IN ('approved', 'rejected') OR (decided_by IS NOT NULL) <> (auto = 1)),
    CHECK (auto = 0 OR status = 'approved'),
    CHECK (decided_by IS NULL OR status IN ('approved', 'rejected'))
) STRICT;

CREATE INDEX approvals_open ON approvals (task) WHERE status = 'open' AND superseded = 0;

-- `silent` of a process was a flag; from now on it is the awake time at which a sweep found its heartbeat overdue, 0 if none did.
ALTER TABLE processes DROP COLUMN silent;
ALTER TABLE processes ADD COLUMN silent INTEGER NOT NULL DEFAULT 0 CHECK (silent >= 0);
