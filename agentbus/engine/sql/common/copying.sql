-- name: copy_place
-- How far a copy into this bus came, if one is under way.
SELECT value FROM meta WHERE key = 'copying';

-- name: copy_counts
-- How many rows each table has.
SELECT 'vocabulary' AS name, count(*) AS amount FROM vocabulary
UNION ALL SELECT 'processes', count(*) FROM processes
UNION ALL SELECT 'sessions', count(*) FROM sessions
UNION ALL SELECT 'participants', count(*) FROM participants
UNION ALL SELECT 'mailboxes', count(*) FROM mailboxes
UNION ALL SELECT 'agents', count(*) FROM agents
UNION ALL SELECT 'pool_members', count(*) FROM pool_members
UNION ALL SELECT 'subscriptions', count(*) FROM subscriptions
UNION ALL SELECT 'messages', count(*) FROM messages
UNION ALL SELECT 'tasks', count(*) FROM tasks
UNION ALL SELECT 'steps', count(*) FROM steps
UNION ALL SELECT 'approvals', count(*) FROM approvals
UNION ALL SELECT 'state', count(*) FROM state
UNION ALL SELECT 'state_floors', count(*) FROM state_floors
UNION ALL SELECT 'checkpoints', count(*) FROM checkpoints
UNION ALL SELECT 'documents', count(*) FROM documents
UNION ALL SELECT 'document_floors', count(*) FROM document_floors
UNION ALL SELECT 'events', count(*) FROM events
UNION ALL SELECT 'meta', count(*) FROM meta;

-- name: copy_types
-- How many types somebody defined.
SELECT count(*) FROM vocabulary WHERE builtin = 0;

-- name: copy_residents
-- The processes that count as live, each with an agent that lives in it, or several times. Those that are only watched for
-- a visiting agent do not have the bus open.
SELECT processes.id, host, boot, pid, processes.started, bell, beat, every, agents.id
FROM processes LEFT JOIN agents ON agents.process = processes.id AND agents.ended IS NULL
WHERE processes.status = 'live' AND processes.watched = 0
ORDER BY processes.id, agents.id;

-- name: copy_forget
-- What an empty bus knows of itself, but for its name, is not true of what is copied into it.
DELETE FROM meta WHERE key <> 'bus';

-- name: copy_unwatch
-- No process is watched for visiting agents.
UPDATE agents SET process = NULL
WHERE ended IS NULL AND process IN (SELECT id FROM processes WHERE status = 'live' AND watched = 1);

-- name: copy_done
-- The copy is finished.
DELETE FROM meta WHERE key = 'copying';

-- name: copy_read_vocabulary
-- The next types.
SELECT kind, name, builtin, description, schema, created
FROM vocabulary WHERE (kind, name) > ($1, $2) ORDER BY kind, name LIMIT $3;

-- name: copy_write_vocabulary
-- Of the types, one that was copied. Those that are built in are there already.
INSERT INTO vocabulary (kind, name, builtin, description, schema, created)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (kind, name) DO UPDATE SET
    builtin = excluded.builtin, description = excluded.description, schema = excluded.schema, created = excluded.created;

-- name: copy_read_processes
-- The next processes.
SELECT
    id, host, boot, pid, started, bell, watched, status, beat, every, silent, created, ended
FROM processes WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_write_processes
-- Of the processes, one that was copied.
INSERT INTO processes (
    id, host, boot, pid, started, bell, watched, status, beat, every, silent, created, ended
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13);

-- name: copy_sizes_sessions
-- About how long the next sessions are.
SELECT length(expected) + length(metadata)
FROM sessions WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_read_sessions
-- The next sessions.
SELECT
    id, operation, milestone, status, progress, process, troubled, resume_by, expected, metadata, error, created,
    updated, ended
FROM sessions WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_write_sessions
-- Of the sessions, one that was copied.
INSERT INTO sessions (
    id, operation, milestone, status, progress, process, troubled, resume_by, expected, metadata, error, created,
    updated, ended
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14);

-- name: copy_sizes_participants
-- About how long the next participants are.
SELECT coalesce(length(result), 0)
FROM participants WHERE (session, meeting, member) > ($1, $2, $3) ORDER BY session, meeting, member LIMIT $4;

-- name: copy_read_participants
-- The next participants.
SELECT session, meeting, member, position, created, finished, checksum, result
FROM participants WHERE (session, meeting, member) > ($1, $2, $3) ORDER BY session, meeting, member LIMIT $4;

-- name: copy_write_participants
-- Of the participants, one that was copied.
INSERT INTO participants (session, meeting, member, position, created, finished, checksum, result)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8);

-- name: copy_read_mailboxes
-- The next mailboxes.
SELECT id, kind, name, owner, epoch, created
FROM mailboxes WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_write_mailboxes
-- Of the mailboxes, one that was copied.
INSERT INTO mailboxes (id, kind, name, owner, epoch, created)
VALUES ($1, $2, $3, $4, $5, $6);

-- name: copy_sizes_agents
-- About how long the next agents are.
SELECT coalesce(length(prompt), 0) + coalesce(length(metadata), 0) + coalesce(length(evidence), 0)
FROM agents WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_read_agents
-- The next agents.
SELECT
    id, name, type, kind, session, milestone, parent, capabilities, model, prompt, load, estimate, metadata,
    status, progress, note, process, epoch, cut_off, patience, last_call, busy_until, mailbox, replies, error,
    evidence, created, started, updated, ended
FROM agents WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_write_agents
-- Of the agents, one that was copied.
INSERT INTO agents (
    id, name, type, kind, session, milestone, parent, capabilities, model, prompt, load, estimate, metadata,
    status, progress, note, process, epoch, cut_off, patience, last_call, busy_until, mailbox, replies, error,
    evidence, created, started, updated, ended
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30);

-- name: copy_read_pool_members
-- The next members of pools.
SELECT pool, agent, joined
FROM pool_members WHERE (pool, agent) > ($1, $2) ORDER BY pool, agent LIMIT $3;

-- name: copy_write_pool_members
-- Of the members of pools, one that was copied.
INSERT INTO pool_members (pool, agent, joined)
VALUES ($1, $2, $3);

-- name: copy_read_subscriptions
-- The next subscriptions.
SELECT topic, agent, mailbox, since
FROM subscriptions WHERE (topic, agent) > ($1, $2) ORDER BY topic, agent LIMIT $3;

-- name: copy_write_subscriptions
-- Of the subscriptions, one that was copied.
INSERT INTO subscriptions (topic, agent, mailbox, since)
VALUES ($1, $2, $3, $4);

-- name: copy_sizes_messages
-- About how long the next messages are.
SELECT length(payload)
FROM messages WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_read_messages
-- The next messages.
SELECT
    id, message_id, mailbox, sender, type, checksum, priority, status, attempts, max_attempts, lease, holder,
    lease_until, due, expires, correlation, reply_to, session, error, created, finished, payload
FROM messages WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_write_messages
-- Of the messages, one that was copied.
INSERT INTO messages (
    id, message_id, mailbox, sender, type, checksum, priority, status, attempts, max_attempts, lease, holder,
    lease_until, due, expires, correlation, reply_to, session, error, created, finished, payload
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22);

-- name: copy_sizes_tasks
-- About how long the next tasks are.
SELECT length(waits) + coalesce(length(error), 0) + length(notes) + length(context) + length(settings) + length(arguments)
    + coalesce(length(result), 0) + coalesce(length(redo), 0)
FROM tasks WHERE number > $1 ORDER BY number LIMIT $2;

-- name: copy_read_tasks
-- The next tasks.
SELECT
    number, id, workflow, name, session, parent, status, phase, auto, halting, progress, note, generation, holder,
    lease, lease_until, due, waits, restarts, backoff, restarted, error, created, started, updated, ended, notes,
    context, settings, checksum, result_sum, arguments, result, losses, max_losses, redo
FROM tasks WHERE number > $1 ORDER BY number LIMIT $2;

-- name: copy_write_tasks
-- Of the tasks, one that was copied.
INSERT INTO tasks (
    number, id, workflow, name, session, parent, status, phase, auto, halting, progress, note, generation, holder,
    lease, lease_until, due, waits, restarts, backoff, restarted, error, created, started, updated, ended, notes,
    context, settings, checksum, result_sum, arguments, result, losses, max_losses, redo
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36);

-- name: copy_sizes_steps
-- About how long the next steps are.
SELECT coalesce(length(error), 0) + coalesce(length(validation), 0) + coalesce(length(result), 0)
FROM steps WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_read_steps
-- The next steps.
SELECT
    id, task, kind, key, superseded, name, position, status, main, once, attempt, failures, digest, progress,
    note, child, due, error, started, finished, checksum, validation, result, seen,
    ending
FROM steps WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_write_steps
-- Of the steps, one that was copied.
INSERT INTO steps (
    id, task, kind, key, superseded, name, position, status, main, once, attempt, failures, digest, progress,
    note, child, due, error, started, finished, checksum, validation, result, seen,
    ending
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25);

-- name: copy_sizes_approvals
-- About how long the next approvals are.
SELECT length(shown)
FROM approvals WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_read_approvals
-- The next approvals.
SELECT
    id, task, key, superseded, name, position, status, auto, notify, expires, created, decided, decided_by,
    reason, checksum, shown, seen, ending
FROM approvals WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_write_approvals
-- Of the approvals, one that was copied.
INSERT INTO approvals (
    id, task, key, superseded, name, position, status, auto, notify, expires, created, decided, decided_by,
    reason, checksum, shown, seen, ending
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18);

-- name: copy_sizes_state
-- About how long the next entries of state are.
SELECT coalesce(length(value), 0)
FROM state WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_read_state
-- The next entries of state.
SELECT
    id, scope, key, type, version, change, checksum, expires, author, created, updated, value
FROM state WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_write_state
-- Of the entries of state, one that was copied.
INSERT INTO state (
    id, scope, key, type, version, change, checksum, expires, author, created, updated, value
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12);

-- name: copy_read_state_floors
-- The next versions that tombstones left.
SELECT scope, version
FROM state_floors WHERE scope > $1 ORDER BY scope LIMIT $2;

-- name: copy_write_state_floors
-- Of the versions that tombstones left, one that was copied.
INSERT INTO state_floors (scope, version)
VALUES ($1, $2);

-- name: copy_sizes_checkpoints
-- About how long the next checkpoints are.
SELECT length(files) + length(snapshot)
FROM checkpoints WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_read_checkpoints
-- The next checkpoints.
SELECT
    id, owner_kind, owner, name, session, created, checksum, size, file_count, notes, files, snapshot
FROM checkpoints WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_write_checkpoints
-- Of the checkpoints, one that was copied.
INSERT INTO checkpoints (
    id, owner_kind, owner, name, session, created, checksum, size, file_count, notes, files, snapshot
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12);

-- name: copy_sizes_documents
-- About how long the next documents are.
SELECT length(value)
FROM documents WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_read_documents
-- The next documents.
SELECT id, session, name, version, checksum, author, created, value
FROM documents WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_write_documents
-- Of the documents, one that was copied.
INSERT INTO documents (id, session, name, version, checksum, author, created, value)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8);

-- name: copy_read_document_floors
-- The next versions that documents left.
SELECT session, name, version
FROM document_floors WHERE (session, name) > ($1, $2) ORDER BY session, name LIMIT $3;

-- name: copy_write_document_floors
-- Of the versions that documents left, one that was copied.
INSERT INTO document_floors (session, name, version)
VALUES ($1, $2, $3);

-- name: copy_sizes_events
-- About how long the next events are.
SELECT length(facts)
FROM events WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_read_events
-- The next events.
SELECT id, at, kind, subject_kind, subject, actor, facts
FROM events WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_write_events
-- Of the events, one that was copied.
INSERT INTO events (id, at, kind, subject_kind, subject, actor, facts)
VALUES ($1, $2, $3, $4, $5, $6, $7);

-- name: copy_read_meta
-- The next facts about the bus. The boot, a copy that is under way and how long writers waited are those of one store only.
SELECT key, value
FROM meta WHERE key > $1 AND key NOT IN ('boot', 'copying', 'lock_waits') ORDER BY key LIMIT $2;

-- name: copy_write_meta
-- Of the facts about the bus, one that was copied. Its own name is replaced by the one it is copied from.
INSERT INTO meta (key, value)
VALUES ($1, $2)
ON CONFLICT (key) DO UPDATE SET value = excluded.value;
