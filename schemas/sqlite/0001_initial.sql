-- The tables of agentbus, version 1.
--
-- Times are integer milliseconds: wall time in columns that people read (created, due, expires …), awake time
-- (a clock that stops during suspend and never jumps) in beat, last_call, busy_until, resume_by and lease_until.
-- Formats are enforced here, so that they hold against every writer, the sqlite3 shell included.
--
-- length() and GLOB stop at a NUL, hence the instr().
-- Tables on the hot path use `x = 'a' OR x = 'b'`, most frequent value first: for three constants or more, SQLite builds a
-- b-tree of `x IN ('a', 'b', 'c')` for every statement, which cost 4 of the 12 microseconds of an insert.

-- Facts about the bus: its random name, by which an archive recognises the bus it came from; when it was created, and the
-- boot in which it was last open; changes to the retention policy, and when it was last applied (wall time).
CREATE TABLE meta (
    key   TEXT NOT NULL PRIMARY KEY CHECK (key <> ''),
    value TEXT NOT NULL,
    CHECK (key <> 'retention' OR (json_valid(value) AND json_type(value) = 'object')),
    CHECK (key NOT IN ('created', 'retention_applied') OR value NOT GLOB '*[^0-9]*' AND value <> '')
) STRICT, WITHOUT ROWID;

INSERT INTO meta (key, value) VALUES ('bus', lower(hex(randomblob(8))));

-- Counters that only grow. message: the last message id (ids are never reused, even after a purge).
-- topology: changes whenever a process starts or stops listening, so that other processes can cache the listeners.
-- change: the last change number of state, in any scope.
CREATE TABLE counters (
    name  TEXT    NOT NULL PRIMARY KEY CHECK (name <> ''),
    value INTEGER NOT NULL CHECK (value >= 0)
) STRICT, WITHOUT ROWID;

INSERT INTO counters (name, value) VALUES ('message', 0), ('topology', 0), ('change', 0);

-- An operating-system process that has the bus open. One heartbeat serves all its agents. A `watched` process does not have
-- it open: a visiting agent named its pid, and it sends no heartbeats. `every`: the interval of its heartbeats. `silent`: a
-- sweep found no heartbeat since the last one.
CREATE TABLE processes (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    host    TEXT    NOT NULL CHECK (host <> ''),
    boot    TEXT    NOT NULL CHECK (boot <> ''),
    pid     INTEGER NOT NULL CHECK (pid > 0),
    started TEXT    NOT NULL,
    bell    TEXT    CHECK (bell <> ''),
    watched INTEGER NOT NULL DEFAULT 0 CHECK (watched IN (0, 1)),
    status  TEXT    NOT NULL DEFAULT 'live' CHECK (status IN ('live', 'ended', 'dead')),
    beat    INTEGER NOT NULL CHECK (beat >= 0),
    every   INTEGER NOT NULL DEFAULT 5000 CHECK (every > 0),
    silent  INTEGER NOT NULL DEFAULT 0 CHECK (silent IN (0, 1)),
    created INTEGER NOT NULL CHECK (created >= 0),
    ended   INTEGER CHECK (ended >= 0),
    CHECK ((status = 'live') = (ended IS NULL))
) STRICT;

CREATE INDEX processes_live ON processes (id) WHERE status = 'live';

-- The channels whose changes a process wants to be notified of: 'mailbox/12', 'state/planner-1', 'events'.
CREATE TABLE listeners (
    channel TEXT    NOT NULL CHECK (channel <> ''),
    process INTEGER NOT NULL REFERENCES processes (id) ON DELETE CASCADE,
    PRIMARY KEY (channel, process)
) STRICT, WITHOUT ROWID;

CREATE INDEX listeners_by_process ON listeners (process);

-- The types that agents and messages may have; a message type may have a JSON Schema.
CREATE TABLE vocabulary (
    kind        TEXT    NOT NULL CHECK (kind IN ('agent', 'message')),
    name        TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 128 AND name NOT GLOB '*[^A-Za-z0-9._:@/-]*'
                                        AND instr(name, char(0)) = 0),
    builtin     INTEGER NOT NULL DEFAULT 0 CHECK (builtin IN (0, 1)),
    description TEXT    NOT NULL DEFAULT '',
    schema      TEXT    CHECK (schema IS NULL OR (length(CAST(schema AS BLOB)) <= 65536 AND json_valid(schema)
                                                  AND json_type(schema) = 'object'
                                                  AND kind = 'message' AND builtin = 0)),
    created     INTEGER NOT NULL CHECK (created >= 0),
    PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;

-- One coordinated operation, owned by the process that is in its block. `expected` maps a producer to the document it
-- must deliver. `troubled`: one of its agents failed since it was started or last continued. `resume_by`: it was resumed without
-- agents, and one must join before this awake time.
CREATE TABLE sessions (
    id        TEXT    NOT NULL PRIMARY KEY
              CHECK (length(id) BETWEEN 1 AND 128 AND id NOT GLOB '*[^A-Za-z0-9._:@/-]*'
                     AND instr(id, char(0)) = 0),
    operation TEXT    NOT NULL
              CHECK (length(operation) BETWEEN 1 AND 128 AND operation NOT GLOB '*[^A-Za-z0-9._:@/-]*'
                     AND instr(operation, char(0)) = 0),
    milestone TEXT
              CHECK (length(milestone) BETWEEN 1 AND 128 AND milestone NOT GLOB '*[^A-Za-z0-9._:@/-]*'
                     AND instr(milestone, char(0)) = 0),
    status    TEXT    NOT NULL DEFAULT 'active'
              CHECK (status IN ('active', 'paused', 'interrupted', 'completed', 'failed')),
    progress  INTEGER NOT NULL DEFAULT 0 CHECK (progress BETWEEN 0 AND 100),
    process   INTEGER REFERENCES processes (id),
    troubled  INTEGER NOT NULL DEFAULT 0 CHECK (troubled IN (0, 1)),
    resume_by INTEGER CHECK (resume_by >= 0),
    expected  TEXT    NOT NULL DEFAULT '{}' CHECK (json_valid(expected) AND json_type(expected) = 'object'),
    metadata  TEXT    NOT NULL DEFAULT '{}' CHECK (json_valid(metadata) AND json_type(metadata) = 'object'),
    error     TEXT,
    created   INTEGER NOT NULL CHECK (created >= 0),
    updated   INTEGER NOT NULL CHECK (updated >= 0),
    ended     INTEGER CHECK (ended >= 0),
    CHECK ((status IN ('completed', 'failed')) = (ended IS NOT NULL))
) STRICT;

CREATE INDEX sessions_open ON sessions (status, updated) WHERE ended IS NULL;
CREATE INDEX sessions_by_process ON sessions (process) WHERE ended IS NULL;
-- For retention, and for the foreign key when a process is deleted: find the sessions of a process without a scan.
CREATE INDEX sessions_naming ON sessions (process) WHERE process IS NOT NULL;
CREATE INDEX sessions_by_age ON sessions (created, id);

-- The members of a meeting that have finished, so that an interrupted meeting resumes with the others. One row per member:
-- two processes that finish two members at once write two rows.
CREATE TABLE participants (
    session  TEXT    NOT NULL REFERENCES sessions (id),
    meeting  TEXT    NOT NULL CHECK (length(meeting) BETWEEN 1 AND 128 AND meeting NOT GLOB '*[^A-Za-z0-9._:@/-]*'
                                     AND instr(meeting, char(0)) = 0),
    member   TEXT    NOT NULL CHECK (length(member) BETWEEN 1 AND 128 AND member NOT GLOB '*[^A-Za-z0-9._:@/-]*'
                                     AND instr(member, char(0)) = 0),
    position INTEGER NOT NULL CHECK (position >= 0),
    created  INTEGER NOT NULL CHECK (created >= 0),
    finished INTEGER CHECK (finished >= 0),
    checksum INTEGER,
    result   TEXT    CHECK (result IS NULL OR json_valid(result)),
    PRIMARY KEY (session, meeting, member),
    CHECK ((finished IS NULL) = (result IS NULL)),
    CHECK ((result IS NULL) = (checksum IS NULL))
) STRICT;

-- Mailboxes: of an agent, of the replies to it, of a pool, of a subscription; a topic has a name here and no messages.
-- A mailbox is never deleted: messages have no index on the mailbox alone, so the foreign key would scan them all.
CREATE TABLE mailboxes (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    kind    TEXT    NOT NULL CHECK (kind IN ('agent', 'replies', 'pool', 'topic', 'subscription')),
    name    TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 128 AND name NOT GLOB '*[^A-Za-z0-9._:@/-]*'
                                    AND instr(name, char(0)) = 0),
    owner   TEXT    NOT NULL DEFAULT '',
    -- The last epoch of an agent that was deleted: should it come back, its old lives stay fenced.
    epoch   INTEGER NOT NULL DEFAULT 0 CHECK (epoch >= 0),
    created INTEGER NOT NULL CHECK (created >= 0),
    UNIQUE (kind, name, owner),
    CHECK ((owner = '') = (kind IN ('pool', 'topic')))
) STRICT;

-- A registered agent. Each incarnation of an id has an epoch; calls of an older epoch are refused. `cut_off`: its last
-- incarnation started and did not complete, so the next one resumes from a checkpoint (2: it was stopped on purpose, and is
-- not expected again). `patience`: the timeout after which a visiting agent is overdue.
CREATE TABLE agents (
    id           TEXT    NOT NULL PRIMARY KEY
                 CHECK (length(id) BETWEEN 1 AND 128 AND id NOT GLOB '*[^A-Za-z0-9._:@/-]*'
                        AND instr(id, char(0)) = 0),
    name         TEXT    NOT NULL CHECK (name <> ''),
    type         TEXT    NOT NULL,
    kind         TEXT    NOT NULL DEFAULT 'resident' CHECK (kind IN ('resident', 'visiting')),
    session      TEXT    REFERENCES sessions (id),
    milestone    TEXT    CHECK (length(milestone) BETWEEN 1 AND 128),
    parent       TEXT    CHECK (length(parent) BETWEEN 1 AND 128),
    capabilities TEXT    NOT NULL DEFAULT '[]'
                 CHECK (json_valid(capabilities) AND json_type(capabilities) = 'array'),
    model        TEXT,
    prompt       TEXT,
    load         INTEGER CHECK (load BETWEEN 0 AND 100),
    estimate     INTEGER CHECK (estimate >= 0),
    metadata     TEXT    NOT NULL DEFAULT '{}' CHECK (json_valid(metadata) AND json_type(metadata) = 'object'),
    status       TEXT    NOT NULL
                 CHECK (status = 'running' OR status = 'completed' OR status = 'failed' OR status = 'stopped'
                        OR status = 'pending' OR status = 'suspect' OR status = 'spawning'),
    progress     INTEGER NOT NULL DEFAULT 0 CHECK (progress BETWEEN 0 AND 100),
    note         TEXT,
    process      INTEGER REFERENCES processes (id),
    epoch        INTEGER NOT NULL DEFAULT 0 CHECK (epoch >= 0),
    cut_off      INTEGER NOT NULL DEFAULT 0 CHECK (cut_off IN (0, 1, 2)),
    patience     INTEGER CHECK (patience > 0),
    last_call    INTEGER CHECK (last_call >= 0),
    busy_until   INTEGER CHECK (busy_until >= 0),
    mailbox      INTEGER NOT NULL REFERENCES mailboxes (id),
    replies      INTEGER NOT NULL REFERENCES mailboxes (id),
    error        TEXT,
    evidence     TEXT    CHECK (evidence IS NULL OR json_valid(evidence)),
    created      INTEGER NOT NULL CHECK (created >= 0),
    started      INTEGER CHECK (started >= 0),
    updated      INTEGER NOT NULL CHECK (updated >= 0),
    ended        INTEGER CHECK (ended >= 0),
    CHECK ((status = 'completed' OR status = 'failed' OR status = 'stopped') = (ended IS NOT NULL)),
    CHECK (kind = 'resident' OR patience IS NOT NULL)
) STRICT;

-- Every call is fenced: this index covers the check of status and epoch, and the look-up of the mailboxes.
CREATE INDEX agents_standing ON agents (id, status, epoch, mailbox, replies);
CREATE INDEX agents_by_process ON agents (process, status) WHERE ended IS NULL;
-- For retention, as for sessions.
CREATE INDEX agents_naming ON agents (process) WHERE process IS NOT NULL;
-- For the sweep, which must not scan all agents: those silent for longest, and those past their timeout.
CREATE INDEX agents_by_call ON agents (status, last_call, busy_until) WHERE ended IS NULL;
CREATE INDEX agents_visiting ON agents (last_call + patience) WHERE kind = 'visiting' AND ended IS NULL;
CREATE INDEX agents_by_status ON agents (status, id);
CREATE INDEX agents_by_session ON agents (session, status) WHERE session IS NOT NULL;

-- The agents that take work from a pool.
CREATE TABLE pool_members (
    pool   INTEGER NOT NULL REFERENCES mailboxes (id),
    agent  TEXT    NOT NULL REFERENCES agents (id) ON DELETE CASCADE,
    joined INTEGER NOT NULL CHECK (joined >= 0),
    PRIMARY KEY (pool, agent)
) STRICT, WITHOUT ROWID;

CREATE INDEX pool_members_by_agent ON pool_members (agent);

-- The agents that get a copy of what is published to a topic, and the mailbox of the copies.
CREATE TABLE subscriptions (
    topic   INTEGER NOT NULL REFERENCES mailboxes (id),
    agent   TEXT    NOT NULL REFERENCES agents (id) ON DELETE CASCADE,
    mailbox INTEGER NOT NULL REFERENCES mailboxes (id),
    since   INTEGER NOT NULL CHECK (since >= 0),
    PRIMARY KEY (topic, agent)
) STRICT, WITHOUT ROWID;

CREATE INDEX subscriptions_by_agent ON subscriptions (agent);

-- The queue. The mailbox is the only foreign key; sender and session are plain text on purpose: without an index on them,
-- deleting an agent would scan all messages. `lease` counts deliveries: (id, lease) identifies one of them.
CREATE TABLE messages (
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
    -- Last, so that reading the columns above never walks the overflow pages of a large payload.
    payload      TEXT    NOT NULL CHECK (json_valid(payload)),
    CHECK (status <> 'leased' OR (holder IS NOT NULL AND lease_until IS NOT NULL)),
    CHECK (status <> 'scheduled' OR due IS NOT NULL),
    CHECK ((status = 'acked' OR status = 'dead' OR status = 'expired') = (finished IS NOT NULL))
) STRICT;

-- These four serve the claim exactly. A finished message is in none of them, so history costs the claim nothing.
CREATE INDEX messages_ready ON messages (mailbox, priority DESC, id) WHERE status = 'queued';
CREATE INDEX messages_due ON messages (mailbox, due) WHERE status = 'scheduled';
CREATE INDEX messages_leased ON messages (mailbox, lease_until, holder) WHERE status = 'leased';
CREATE INDEX messages_expiring ON messages (mailbox, expires)
    WHERE expires IS NOT NULL AND status IN ('queued', 'scheduled');
-- For the sweep: expired messages of all mailboxes.
CREATE INDEX messages_by_expiry ON messages (expires) WHERE expires IS NOT NULL AND status IN ('queued', 'scheduled');
-- The copies of one published message share its message_id, one per mailbox.
CREATE UNIQUE INDEX messages_by_message_id ON messages (message_id, mailbox) WHERE message_id IS NOT NULL;
-- Includes replies that were read: a request repeated after a crash gets the same reply.
CREATE INDEX messages_replies ON messages (mailbox, correlation) WHERE correlation IS NOT NULL;
CREATE INDEX messages_dead ON messages (id) WHERE status = 'dead';

-- AFTER, not BEFORE: it costs half as much, and RAISE undoes the statement in both cases.
CREATE TRIGGER messages_type_is_known AFTER INSERT ON messages
WHEN NOT EXISTS (SELECT 1 FROM vocabulary WHERE kind = 'message' AND name = NEW.type)
BEGIN
    SELECT RAISE(ABORT, 'message type is not in the vocabulary');
END;

CREATE TRIGGER messages_type_stays_known BEFORE UPDATE OF type ON messages
WHEN NOT EXISTS (SELECT 1 FROM vocabulary WHERE kind = 'message' AND name = NEW.type)
BEGIN
    SELECT RAISE(ABORT, 'message type is not in the vocabulary');
END;

CREATE TRIGGER agents_type_is_known BEFORE INSERT ON agents
WHEN NOT EXISTS (SELECT 1 FROM vocabulary WHERE kind = 'agent' AND name = NEW.type)
BEGIN
    SELECT RAISE(ABORT, 'agent type is not in the vocabulary');
END;

CREATE TRIGGER agents_type_stays_known BEFORE UPDATE OF type ON agents
WHEN NOT EXISTS (SELECT 1 FROM vocabulary WHERE kind = 'agent' AND name = NEW.type)
BEGIN
    SELECT RAISE(ABORT, 'agent type is not in the vocabulary');
END;

-- Messages and agents refer to types by name: a type is never removed or renamed.
CREATE TRIGGER vocabulary_stays BEFORE DELETE ON vocabulary
BEGIN
    SELECT RAISE(ABORT, 'types are never removed');
END;

CREATE TRIGGER vocabulary_keeps_its_names BEFORE UPDATE OF kind, name ON vocabulary
BEGIN
    SELECT RAISE(ABORT, 'types are never renamed');
END;

-- JSON values by scope (an agent's id, session:<id>, or any other name) and key. A row without a value is a tombstone, which
-- keeps the version, so that versions never repeat.
CREATE TABLE state (
    id       INTEGER PRIMARY KEY,
    scope    TEXT    NOT NULL CHECK (length(scope) BETWEEN 1 AND iif(scope GLOB 'session:*', 136, 128)
                                     AND scope NOT GLOB '*[^A-Za-z0-9._:@/-]*' AND instr(scope, char(0)) = 0),
    key      TEXT    NOT NULL CHECK (length(key) BETWEEN 1 AND 256 AND key NOT GLOB '*[^A-Za-z0-9._:@/-]*'
                                     AND instr(key, char(0)) = 0),
    type     TEXT    NOT NULL DEFAULT 'user_data'
             CHECK (type = 'user_data' OR type = 'progress' OR type = 'checkpoint' OR type = 'temp_data'
                    OR type = 'system_data'),
    version  INTEGER NOT NULL CHECK (version >= 1),
    change   INTEGER NOT NULL CHECK (change >= 1),
    checksum INTEGER,
    expires  INTEGER CHECK (expires >= 0),
    author   TEXT    CHECK (length(author) BETWEEN 1 AND 128),
    created  INTEGER NOT NULL CHECK (created >= 0),
    updated  INTEGER NOT NULL CHECK (updated >= 0),
    -- Last, so that reading the columns above never walks the overflow pages of a large value.
    value    TEXT    CHECK (value IS NULL OR json_valid(value)),
    UNIQUE (scope, key),
    CHECK ((value IS NULL) = (checksum IS NULL)),
    CHECK (value IS NOT NULL OR expires IS NULL)
) STRICT;

-- For watchers of a scope: what changed since a number, and what expires next.
CREATE UNIQUE INDEX state_by_change ON state (scope, change);
CREATE INDEX state_by_expiry ON state (scope, expires) WHERE expires IS NOT NULL;
-- For the sweep: expired entries of all scopes.
CREATE INDEX state_expiring ON state (expires) WHERE expires IS NOT NULL;
-- For retention: the oldest tombstones.
CREATE INDEX state_tombstones ON state (updated, id) WHERE value IS NULL;

-- The highest version among the removed tombstones of a scope: versions of new entries continue from it.
CREATE TABLE state_floors (
    scope   TEXT    NOT NULL PRIMARY KEY CHECK (length(scope) BETWEEN 1 AND 136),
    version INTEGER NOT NULL CHECK (version >= 1)
) STRICT, WITHOUT ROWID;

-- Named snapshots. Files are references (path, size, sha256), not contents. `size`: bytes of the snapshot.
-- A composite is a snapshot of everything in a session, which owns it.
CREATE TABLE checkpoints (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    owner_kind TEXT    NOT NULL CHECK (owner_kind IN ('agent', 'session', 'composite', 'task')),
    owner      TEXT    NOT NULL CHECK (length(owner) BETWEEN 1 AND 128 AND owner NOT GLOB '*[^A-Za-z0-9._:@/-]*'
                                       AND instr(owner, char(0)) = 0),
    name       TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 128 AND name NOT GLOB '*[^A-Za-z0-9._:@/-]*'
                                       AND instr(name, char(0)) = 0),
    session    TEXT    CHECK (length(session) BETWEEN 1 AND 128),
    created    INTEGER NOT NULL CHECK (created >= 0),
    checksum   TEXT    NOT NULL CHECK (length(checksum) = 64 AND checksum NOT GLOB '*[^0-9a-f]*'),
    size       INTEGER NOT NULL,
    file_count INTEGER NOT NULL DEFAULT 0,
    notes      TEXT    NOT NULL DEFAULT '' CHECK (length(notes) <= 10000),
    -- Last, so that a list of checkpoints never walks the overflow pages of large ones.
    files      TEXT    NOT NULL DEFAULT '[]' CHECK (json_valid(files) AND json_type(files) = 'array'),
    snapshot   TEXT    NOT NULL CHECK (json_valid(snapshot)),
    CHECK (size = length(CAST(snapshot AS BLOB))),
    CHECK (file_count = json_array_length(files))
) STRICT;

CREATE INDEX checkpoints_by_owner ON checkpoints (owner_kind, owner, id);
CREATE INDEX checkpoints_by_name ON checkpoints (owner_kind, owner, name, id);

-- Named outputs of a session; the last versions are kept.
CREATE TABLE documents (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    session  TEXT    NOT NULL REFERENCES sessions (id),
    name     TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 128 AND name NOT GLOB '*[^A-Za-z0-9._:@/-]*'
                                     AND instr(name, char(0)) = 0),
    version  INTEGER NOT NULL CHECK (version >= 1),
    checksum TEXT    NOT NULL CHECK (length(checksum) = 64 AND checksum NOT GLOB '*[^0-9a-f]*'),
    author   TEXT    CHECK (length(author) BETWEEN 1 AND 128),
    created  INTEGER NOT NULL CHECK (created >= 0),
    -- Last, so that listing what there is never walks the overflow pages of a large value.
    value    TEXT    NOT NULL CHECK (json_valid(value)),
    UNIQUE (session, name, version)
) STRICT;

-- The last version of a document that a rollback removed: if it is saved again, its versions continue from there.
CREATE TABLE document_floors (
    session TEXT    NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    name    TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 128),
    version INTEGER NOT NULL CHECK (version >= 1),
    PRIMARY KEY (session, name)
) STRICT, WITHOUT ROWID;

-- The audit log: which actor changed what, and when. Messages have no events.
CREATE TABLE events (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    at           INTEGER NOT NULL CHECK (at >= 0),
    kind         TEXT    NOT NULL CHECK (kind <> ''),
    subject_kind TEXT    NOT NULL
                 CHECK (subject_kind IN ('agent', 'message', 'session', 'process', 'state', 'mailbox',
                                         'vocabulary', 'document', 'checkpoint', 'task', 'bus')),
    subject      TEXT    NOT NULL CHECK (subject <> ''),
    actor        TEXT,
    facts        TEXT    NOT NULL DEFAULT '{}' CHECK (json_valid(facts) AND json_type(facts) = 'object')
) STRICT;

CREATE INDEX events_by_subject ON events (subject_kind, subject, id);
CREATE INDEX events_by_kind ON events (kind, id);

INSERT INTO vocabulary (kind, name, builtin, description, created) VALUES
    ('agent', 'milestone-coordinator', 1, 'leads the agents of a milestone', 0),
    ('agent', 'milestone-executor', 1, 'carries out a phase of a milestone', 0),
    ('agent', 'milestone-planner', 1, 'plans a milestone', 0),
    ('agent', 'scope-analyzer', 1, 'finds out what a change touches', 0),
    ('agent', 'estimation-agent', 1, 'estimates effort and duration', 0),
    ('agent', 'risk-assessor', 1, 'looks for what may go wrong', 0),
    ('agent', 'coordinator', 1, 'leads other agents', 0),
    ('agent', 'planner', 1, 'makes plans', 0),
    ('agent', 'executor', 1, 'carries out plans', 0),
    ('agent', 'reviewer', 1, 'reviews what others made', 0),
    ('agent', 'tester', 1, 'tests what others made', 0),
    ('agent', 'worker', 1, 'does any kind of work', 0),
    ('message', 'task_assignment', 1, 'work for the receiver', 0),
    ('message', 'progress_update', 1, 'how far the sender is', 0),
    ('message', 'coordination_request', 1, 'a question that wants an answer', 0),
    ('message', 'coordination_response', 1, 'the answer to a question', 0),
    ('message', 'validation_result', 1, 'the outcome of a check', 0),
    ('message', 'error_report', 1, 'something went wrong', 0),
    ('message', 'completion_notification', 1, 'work is finished', 0),
    ('message', 'approval_request', 1, 'a person is asked to decide', 0),
    ('message', 'approval_decision', 1, 'what a person decided', 0),
    ('message', 'control', 1, 'halt, continue, redo or stop', 0),
    ('message', 'note', 1, 'anything else', 0);
