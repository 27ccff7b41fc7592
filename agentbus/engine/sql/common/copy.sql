-- name: copy_position
-- The position of a copy into this bus, if one is in progress.
SELECT value FROM meta WHERE key = 'copying';

-- name: copy_counts
-- The number of rows of each table.
SELECT 'vocabulary' AS name, count(*) AS amount FROM vocabulary
UNION ALL SELECT 'processes', count(*) FROM processes
UNION ALL SELECT 'sessions', count(*) FROM sessions
UNION ALL SELECT 'participants', count(*) FROM participants
UNION ALL SELECT 'mailboxes', count(*) FROM mailboxes
UNION ALL SELECT 'agents', count(*) FROM agents
UNION ALL SELECT 'pool_members', count(*) FROM pool_members
UNION ALL SELECT 'subscriptions', count(*) FROM subscriptions
UNION ALL SELECT 'messages', count(*) FROM messages
UNION ALL SELECT 'receipts', count(*) FROM receipts
UNION ALL SELECT 'tasks', count(*) FROM tasks
UNION ALL SELECT 'dependencies', count(*) FROM dependencies
UNION ALL SELECT 'steps', count(*) FROM steps
UNION ALL SELECT 'approvals', count(*) FROM approvals
UNION ALL SELECT 'signals', count(*) FROM signals
UNION ALL SELECT 'state', count(*) FROM state
UNION ALL SELECT 'state_floors', count(*) FROM state_floors
UNION ALL SELECT 'checkpoints', count(*) FROM checkpoints
UNION ALL SELECT 'documents', count(*) FROM documents
UNION ALL SELECT 'document_floors', count(*) FROM document_floors
UNION ALL SELECT 'histories', count(*) FROM histories
UNION ALL SELECT 'history_items', count(*) FROM history_items
UNION ALL SELECT 'threads', count(*) FROM threads
UNION ALL SELECT 'holds', count(*) FROM holds
UNION ALL SELECT 'events', count(*) FROM events
UNION ALL SELECT 'meta', count(*) FROM meta;

-- name: copy_types
-- The number of types that are not built in.
SELECT count(*) FROM vocabulary WHERE builtin = 0;

-- name: copy_processes
-- The live processes that have the bus open, with a row for each of their agents. A process that is only watched for a
-- visiting agent does not have it open.
SELECT processes.id, host, boot, pid, processes.started, bell, beat, every, agents.id
FROM processes LEFT JOIN agents ON agents.process = processes.id AND agents.ended IS NULL
WHERE processes.status = 'live' AND processes.watched = 0
ORDER BY processes.id, agents.id;

-- name: copy_forget
-- Delete what an empty bus knows of itself, except its name: it does not apply to the rows that are copied.
DELETE FROM meta WHERE key <> 'bus';

-- name: copy_unwatch
-- Stop watching processes for visiting agents.
UPDATE agents SET process = NULL
WHERE ended IS NULL AND process IN (SELECT id FROM processes WHERE status = 'live' AND watched = 1);

-- name: copy_done
-- Finish a copy.
DELETE FROM meta WHERE key = 'copying';

-- name: copy_read_vocabulary
-- The next types.
SELECT /* columns: vocabulary */
FROM vocabulary WHERE (kind, name) > ($1, $2) ORDER BY kind, name LIMIT $3;

-- name: copy_write_vocabulary
-- Insert a copied type. Built-in types exist already.
INSERT INTO vocabulary (/* columns: vocabulary */)
VALUES (/* values: vocabulary */)
ON CONFLICT (kind, name) DO UPDATE SET
    builtin = excluded.builtin, description = excluded.description, schema = excluded.schema, created = excluded.created;

-- name: copy_read_processes
-- The next processes.
SELECT /* columns: processes */
FROM processes WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_write_processes
-- Insert copied processes.
INSERT INTO processes (/* columns: processes */)
VALUES (/* values: processes */);

-- name: copy_sizes_sessions
-- The length of the next sessions.
SELECT length(expected) + length(metadata)
FROM sessions WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_read_sessions
-- The next sessions.
SELECT /* columns: sessions */
FROM sessions WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_write_sessions
-- Insert copied sessions.
INSERT INTO sessions (/* columns: sessions */)
VALUES (/* values: sessions */);

-- name: copy_sizes_participants
-- The length of the next participants.
SELECT coalesce(length(result), 0)
FROM participants WHERE (session, meeting, member) > ($1, $2, $3) ORDER BY session, meeting, member LIMIT $4;

-- name: copy_read_participants
-- The next participants.
SELECT /* columns: participants */
FROM participants WHERE (session, meeting, member) > ($1, $2, $3) ORDER BY session, meeting, member LIMIT $4;

-- name: copy_write_participants
-- Insert copied participants.
INSERT INTO participants (/* columns: participants */)
VALUES (/* values: participants */);

-- name: copy_read_mailboxes
-- The next mailboxes.
SELECT /* columns: mailboxes */
FROM mailboxes WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_write_mailboxes
-- Insert copied mailboxes.
INSERT INTO mailboxes (/* columns: mailboxes */)
VALUES (/* values: mailboxes */);

-- name: copy_sizes_agents
-- The length of the next agents.
SELECT coalesce(length(prompt), 0) + coalesce(length(metadata), 0) + coalesce(length(evidence), 0)
FROM agents WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_read_agents
-- The next agents.
SELECT
    /* columns: stored_agent */
FROM agents WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_write_agents
-- Insert copied agents.
INSERT INTO agents (/* columns: stored_agent */)
VALUES (/* values: stored_agent */);

-- name: copy_read_pool_members
-- The next members of pools.
SELECT /* columns: pool_members */
FROM pool_members WHERE (pool, agent) > ($1, $2) ORDER BY pool, agent LIMIT $3;

-- name: copy_write_pool_members
-- Insert copied members of pools.
INSERT INTO pool_members (/* columns: pool_members */)
VALUES (/* values: pool_members */);

-- name: copy_read_subscriptions
-- The next subscriptions.
SELECT /* columns: subscriptions */
FROM subscriptions WHERE (topic, agent) > ($1, $2) ORDER BY topic, agent LIMIT $3;

-- name: copy_write_subscriptions
-- Insert copied subscriptions.
INSERT INTO subscriptions (/* columns: subscriptions */)
VALUES (/* values: subscriptions */);

-- name: copy_sizes_messages
-- The length of the next messages.
SELECT length(payload)
FROM messages WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_read_messages
-- The next messages.
SELECT
    /* columns: stored_message */
FROM messages WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_write_messages
-- Insert copied messages.
INSERT INTO messages (/* columns: stored_message */)
VALUES (/* values: stored_message */);

-- name: copy_read_receipts
-- The next receipts of messages.
SELECT /* columns: receipts */
FROM receipts WHERE (message, agent, epoch, client) > ($1, $2, $3, $4) ORDER BY message, agent, epoch, client LIMIT $5;

-- name: copy_write_receipts
-- Insert copied receipts.
INSERT INTO receipts (/* columns: receipts */)
VALUES (/* values: receipts */);

-- name: copy_sizes_tasks
-- The length of the next tasks.
SELECT length(waits) + coalesce(length(error), 0) + length(notes) + length(context) + length(settings) + length(arguments)
    + coalesce(length(result), 0) + coalesce(length(redo), 0)
FROM tasks WHERE number > $1 ORDER BY number LIMIT $2;

-- name: copy_read_tasks
-- The next tasks.
SELECT /* columns: tasks */
FROM tasks WHERE number > $1 ORDER BY number LIMIT $2;

-- name: copy_write_tasks
-- Insert copied tasks.
INSERT INTO tasks (/* columns: tasks */)
VALUES (/* values: tasks */);

-- name: copy_read_dependencies
-- The next dependencies of tasks.
SELECT /* columns: dependencies */
FROM dependencies WHERE (task, dependency) > ($1, $2) ORDER BY task, dependency LIMIT $3;

-- name: copy_write_dependencies
-- Insert copied dependencies of tasks.
INSERT INTO dependencies (/* columns: dependencies */)
VALUES (/* values: dependencies */);

-- name: copy_sizes_steps
-- The length of the next steps.
SELECT coalesce(length(error), 0) + coalesce(length(validation), 0) + coalesce(length(result), 0)
FROM steps WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_read_steps
-- The next steps.
SELECT /* columns: steps */
FROM steps WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_write_steps
-- Insert copied steps.
INSERT INTO steps (/* columns: steps */)
VALUES (/* values: steps */);

-- name: copy_sizes_approvals
-- The length of the next approvals.
SELECT length(shown)
FROM approvals WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_read_approvals
-- The next approvals.
SELECT /* columns: approvals */
FROM approvals WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_write_approvals
-- Insert copied approvals.
INSERT INTO approvals (/* columns: approvals */)
VALUES (/* values: approvals */);

-- name: copy_sizes_signals
-- The length of the next signals.
SELECT length(value)
FROM signals WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_read_signals
-- The next signals.
SELECT /* columns: signals */
FROM signals WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_write_signals
-- Insert copied signals.
INSERT INTO signals (/* columns: signals */)
VALUES (/* values: signals */);

-- name: copy_sizes_state
-- The length of the next entries of state.
SELECT coalesce(length(value), 0)
FROM state WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_read_state
-- The next entries of state.
SELECT /* columns: state */
FROM state WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_write_state
-- Insert copied entries of state.
INSERT INTO state (/* columns: state */)
VALUES (/* values: state */);

-- name: copy_read_state_floors
-- The next versions of removed tombstones.
SELECT /* columns: state_floors */
FROM state_floors WHERE scope > $1 ORDER BY scope LIMIT $2;

-- name: copy_write_state_floors
-- Insert copied versions of removed tombstones.
INSERT INTO state_floors (/* columns: state_floors */)
VALUES (/* values: state_floors */);

-- name: copy_sizes_checkpoints
-- The length of the next checkpoints.
SELECT length(files) + length(snapshot)
FROM checkpoints WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_read_checkpoints
-- The next checkpoints.
SELECT /* columns: checkpoints */
FROM checkpoints WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_write_checkpoints
-- Insert copied checkpoints.
INSERT INTO checkpoints (/* columns: checkpoints */)
VALUES (/* values: checkpoints */);

-- name: copy_sizes_documents
-- The length of the next documents.
SELECT length(value)
FROM documents WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_read_documents
-- The next documents.
SELECT /* columns: documents */
FROM documents WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_write_documents
-- Insert copied documents.
INSERT INTO documents (/* columns: documents */)
VALUES (/* values: documents */);

-- name: copy_read_document_floors
-- The next versions of removed documents.
SELECT /* columns: document_floors */
FROM document_floors WHERE (session, name) > ($1, $2) ORDER BY session, name LIMIT $3;

-- name: copy_write_document_floors
-- Insert copied versions of removed documents.
INSERT INTO document_floors (/* columns: document_floors */)
VALUES (/* values: document_floors */);

-- name: copy_sizes_histories
-- The length of the next histories.
SELECT length(meta)
FROM histories WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_read_histories
-- The next histories.
SELECT /* columns: histories */
FROM histories WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_write_histories
-- Insert copied histories.
INSERT INTO histories (/* columns: histories */)
VALUES (/* values: histories */);

-- name: copy_sizes_history_items
-- The length of the next items of histories.
SELECT length(meta) + size
FROM history_items WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_read_history_items
-- The next items of histories.
SELECT /* columns: history_items */
FROM history_items WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_write_history_items
-- Insert copied items of histories.
INSERT INTO history_items (/* columns: history_items */)
VALUES (/* values: history_items */);

-- name: copy_read_threads
-- The next threads.
SELECT /* columns: threads */
FROM threads WHERE thread > $1 ORDER BY thread LIMIT $2;

-- name: copy_write_threads
-- Insert copied threads.
INSERT INTO threads (/* columns: threads */)
VALUES (/* values: threads */);

-- name: copy_read_holds
-- The next holds.
SELECT /* columns: holds */
FROM holds WHERE message > $1 ORDER BY message LIMIT $2;

-- name: copy_write_holds
-- Insert copied holds.
INSERT INTO holds (/* columns: holds */)
VALUES (/* values: holds */);

-- name: copy_sizes_events
-- The length of the next events.
SELECT length(facts)
FROM events WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_read_events
-- The next events.
SELECT /* columns: events */
FROM events WHERE id > $1 ORDER BY id LIMIT $2;

-- name: copy_write_events
-- Insert copied events.
INSERT INTO events (/* columns: events */)
VALUES (/* values: events */);

-- name: copy_read_meta
-- The next facts about the bus. The boot, the position of a copy and the lock waits belong to one store only.
SELECT key, value
FROM meta WHERE key > $1 AND key NOT IN ('boot', 'copying', 'lock_waits') ORDER BY key LIMIT $2;

-- name: copy_write_meta
-- Insert a copied fact about the bus. It replaces the name of the target by that of the source.
INSERT INTO meta (key, value)
VALUES ($1, $2)
ON CONFLICT (key) DO UPDATE SET value = excluded.value;
