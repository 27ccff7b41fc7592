-- name: listener_insert
-- Listen to a channel on behalf of a process.
INSERT INTO listeners (channel, process) VALUES ($1, $2) ON CONFLICT DO NOTHING;

-- name: listener_any
-- Whether a live process listens to a channel.
SELECT 1 FROM listeners JOIN processes ON processes.id = listeners.process
WHERE listeners.channel = $1 AND processes.status = 'live'
LIMIT 1;

-- name: listener_delete
-- Stop listening to a channel on behalf of a process.
DELETE FROM listeners WHERE channel = $1 AND process = $2;

-- name: agent_names
-- Agents to suggest for a misspelt name.
SELECT id FROM agents ORDER BY updated DESC LIMIT 1000;

-- name: agent_status
-- The status of an agent, its session, and its process.
SELECT agents.id, agents.status, agents.session, processes.id, processes.host, processes.pid, processes.started, processes.bell
FROM agents LEFT JOIN processes ON processes.id = agents.process
WHERE agents.id = $1;

-- name: agent_incarnation
-- The epoch of an agent, its mailboxes and its session.
SELECT epoch, mailbox, replies, session FROM agents WHERE id = $1;

-- name: agent_reach
-- How an agent, the members of a pool or the subscribers of a topic can be woken ($1 is the kind, $2 the name): whether a
-- process waits for the messages of each, and what the adapters of its incarnation declared, the earliest first.
SELECT agents.id, agents.epoch, agents.status, agents.last_call, agents.busy_until,
    CASE WHEN EXISTS (
        SELECT 1 FROM listeners JOIN processes ON processes.id = listeners.process
        WHERE listeners.channel = 'reach/' || agents.mailbox || '/' || agents.epoch AND processes.status = 'live'
    ) THEN 1 ELSE 0 END,
    (SELECT min(reach.wakes) FROM reach WHERE reach.agent = agents.id AND reach.epoch = agents.epoch)
FROM agents
WHERE agents.id IN (
    SELECT CAST($2 AS text) WHERE CAST($1 AS text) = 'agent'
    UNION ALL
    SELECT pool_members.agent FROM mailboxes JOIN pool_members ON pool_members.pool = mailboxes.id
    WHERE CAST($1 AS text) = 'pool' AND mailboxes.kind = 'pool' AND mailboxes.name = $2 AND mailboxes.owner = ''
    UNION ALL
    SELECT subscriptions.agent FROM mailboxes JOIN subscriptions ON subscriptions.topic = mailboxes.id
    WHERE CAST($1 AS text) = 'topic' AND mailboxes.kind = 'topic' AND mailboxes.name = $2 AND mailboxes.owner = ''
);

-- name: agent_mailboxes
-- The pools and subscriptions that an agent reads.
SELECT mailboxes.kind, mailboxes.name, mailboxes.id
FROM pool_members JOIN mailboxes ON mailboxes.id = pool_members.pool
WHERE pool_members.agent = $1
UNION ALL
SELECT mailboxes.kind, mailboxes.name, mailboxes.id
FROM subscriptions JOIN mailboxes ON mailboxes.id = subscriptions.mailbox
WHERE subscriptions.agent = $1;

-- name: agent_register
-- Start an incarnation of an agent, or announce it. $12 is added to its epoch: 1 or 0; a deleted agent continues from
-- its last epoch. NULL in the profile keeps the stored value; $14 is the patience of an agent that never had one.
INSERT INTO agents (
    id, type, kind, session, process, status, created, started, updated, last_call, mailbox, replies, epoch,
    busy_until, name, capabilities, metadata, patience, /* columns: profile */
)
VALUES (
    $1, $2, $3, $4, $5, $6, $7, $8, $7, $9, $10, $11, $12 + (SELECT epoch FROM mailboxes WHERE id = $10),
    $13, coalesce($15, $1), coalesce($16, '[]'), coalesce($17, '{}'), coalesce(CAST($18 AS bigint), $14),
    /* values: profile $19 */
)
ON CONFLICT (id) DO UPDATE SET
    type = excluded.type,
    kind = excluded.kind,
    session = excluded.session,
    process = excluded.process,
    status = excluded.status,
    started = coalesce(excluded.started, agents.started),
    updated = excluded.updated,
    last_call = excluded.last_call,
    epoch = agents.epoch + $12,
    name = coalesce($15, agents.name),
    capabilities = coalesce($16, agents.capabilities),
    metadata = coalesce($17, agents.metadata),
    patience = coalesce($18, agents.patience, $14),
    /* given: agents.profile $19 */,
    progress = 0,
    cut_off = CASE WHEN $12 = 1 THEN 0 ELSE agents.cut_off END,
    note = NULL,
    busy_until = excluded.busy_until,
    error = NULL,
    evidence = NULL,
    ended = NULL;

-- name: agent_join_session
-- Move an agent to another session.
UPDATE agents SET session = $1, updated = $2 WHERE id = $3;

-- name: agent_expect_again
-- Expect the agents of a session that failed, or were not stopped on purpose, to return: by $4 (awake), unless it is
-- NULL.
UPDATE agents SET
    status = CASE WHEN CAST($4 AS bigint) IS NULL THEN 'pending' ELSE 'spawning' END,
    process = NULL, last_call = $3, busy_until = $4, updated = $1, ended = NULL, error = NULL, evidence = NULL
WHERE session = $2 AND (status = 'failed' OR (status = 'stopped' AND cut_off <> 2))
RETURNING id;

-- name: agent_cut_off
-- Whether the last incarnation of an agent did not complete.
SELECT cut_off FROM agents WHERE id = $1;

-- name: agent_of_session
-- The agents of a session, each with its newest checkpoint in it, and whether it was stopped on purpose.
SELECT id, type, status, epoch, progress, note, error,
    (SELECT max(id) FROM checkpoints WHERE owner_kind = 'agent' AND owner = agents.id AND session = $1),
    CASE WHEN cut_off = 2 THEN 1 ELSE 0 END
FROM agents
WHERE agents.session = $1
ORDER BY id;

-- name: agent_update
-- Change the profile of an agent; NULL keeps the stored value.
UPDATE agents SET
    updated = $1,
    name = coalesce($3, name),
    capabilities = coalesce($4, capabilities),
    metadata = coalesce($5, metadata),
    patience = coalesce($6, patience),
    /* given: agents.profile $7 */
WHERE id = $2
RETURNING id;

-- name: agent_end
-- Mark an agent completed, failed or stopped, with the evidence if liveness checks decided it.
UPDATE agents SET
    status = $1, error = $2, ended = $3, updated = $3, busy_until = NULL, evidence = $4,
    cut_off = CASE WHEN status IN ('pending', 'spawning') THEN cut_off WHEN $1 = 'completed' THEN 0 ELSE 1 END
WHERE id = $5;

-- name: agent_dismiss
-- Note that an agent was stopped on purpose.
UPDATE agents SET cut_off = 2 WHERE id = $1 AND cut_off = 1;

-- name: agent_ending
-- The status of an agent, and its error if it has ended.
SELECT id, status, error FROM agents WHERE id = $1;

-- name: agent_suspect
-- Mark an agent suspect.
UPDATE agents SET status = 'suspect', evidence = $1, updated = $2 WHERE id = $3;

-- name: agent_recover
-- Clear the suspicion of an agent that called.
UPDATE agents SET status = 'running', evidence = NULL, last_call = $1, updated = $2 WHERE id = $3;

-- name: agent_suspects
-- The suspect agents of a process.
SELECT id, epoch, evidence FROM agents WHERE process = $1 AND status = 'suspect' AND ended IS NULL;

-- name: agent_absent
-- Agents that did not register in time.
SELECT id, last_call, busy_until FROM agents
WHERE status = 'spawning' AND ended IS NULL AND (busy_until IS NULL OR busy_until <= $1)
ORDER BY last_call
LIMIT $2;

-- name: agent_progress
-- Record the progress of an agent.
UPDATE agents SET progress = $1, note = coalesce($2, note), updated = $3, last_call = $4 WHERE id = $5;

-- name: agent_busy
-- Note until when an agent will be silent.
UPDATE agents SET busy_until = $1, last_call = $2, updated = $3 WHERE id = $4;

-- name: agent_called
-- Record the last call of an agent.
UPDATE agents SET last_call = $1 WHERE id = $2 AND epoch = $3 AND ended IS NULL;

-- name: agent_forget_calls
-- Set the last call of every agent that has not ended: awake time starts again after a reboot.
UPDATE agents SET last_call = $1, busy_until = NULL WHERE ended IS NULL;

-- name: agent_finished_before
-- Agents that completed or stopped before a time.
SELECT id FROM agents WHERE status IN ('completed', 'stopped') AND ended <= $1 ORDER BY id LIMIT $2;

-- name: agent_get
-- One agent.
SELECT /* columns: agent */
FROM agents WHERE id = $1;

-- name: agent_counts
-- The number of agents of each status.
SELECT status, count(*) FROM agents GROUP BY status;

-- name: agent_expendable
-- Agents after a cursor that ended before a time, and whose session has ended.
SELECT id FROM agents
WHERE id > $1 AND ended <= $2
    AND (session IS NULL OR EXISTS (
        SELECT 1 FROM sessions WHERE sessions.id = agents.session AND sessions.ended IS NOT NULL
    ))
ORDER BY id
LIMIT $3;

-- name: agent_restore
-- Insert an ended agent of an archive.
INSERT INTO agents (/* columns: stored_agent */)
VALUES (/* values: stored_agent */);

-- name: agent_restored
-- Join a restored agent to its session, if that exists, and raise its epoch to the last one issued.
UPDATE agents SET
    session = (SELECT id FROM sessions WHERE id = $2),
    epoch = coalesce((SELECT epoch FROM mailboxes WHERE id = agents.mailbox AND epoch > agents.epoch), epoch)
WHERE id = $1;

-- name: agent_after
-- Agents after a cursor, ordered by id, with an estimate of their size.
SELECT id, 500 + length(metadata) + coalesce(length(prompt), 0) FROM agents WHERE id > $1 ORDER BY id LIMIT $2;

-- name: agent_made
-- The creation time and status of an agent that has not ended.
SELECT created, status FROM agents WHERE id = $1 AND ended IS NULL;

-- name: agent_of_processes
-- The live agents of processes.
SELECT id, process, last_call, busy_until, progress FROM agents
WHERE ended IS NULL AND process /* in: $1 */;

-- name: agent_of_status
-- The resident agents of processes that have this status.
SELECT id, process, last_call, busy_until, progress FROM agents
WHERE ended IS NULL AND process /* in: $1 */ AND status = $2 AND kind = 'resident';

-- name: agent_suspected
-- The suspect agents among these, with the evidence.
SELECT agents.id, agents.evidence
FROM /* rows: agents.id $1 */ AND agents.status = 'suspect';

-- name: agent_silent
-- Agents of this status that, at the last heartbeat of their process, had been silent for longer than $2 and longer
-- than their patience. $3 is now minus $2: no heartbeat is later, so that the index excludes most agents. SQLite would
-- start from processes after ANALYZE, therefore the index is named.
SELECT agents.id, agents.process, agents.last_call, agents.busy_until, agents.progress, processes.pid, processes.beat
FROM agents /* sqlite: INDEXED BY agents_by_call */ /* sqlite: CROSS */ JOIN processes ON processes.id = agents.process
WHERE agents.status = $1 AND agents.ended IS NULL AND agents.kind = 'resident'
    AND agents.last_call < $3 AND (agents.busy_until IS NULL OR agents.busy_until < $3)
    AND processes.status = 'live'
    AND agents.last_call < processes.beat - $2
    AND (agents.busy_until IS NULL OR agents.busy_until < processes.beat - $2)
    AND (
        agents.patience IS NULL
        OR (agents.last_call < processes.beat - agents.patience
            AND (agents.busy_until IS NULL OR agents.busy_until < processes.beat - agents.patience))
    )
ORDER BY agents.last_call
LIMIT $4;

-- name: listener_clear
-- Remove all listeners of processes.
DELETE FROM listeners WHERE process /* in: $1 */;

-- name: listener_remove
-- Remove all listeners of channels.
DELETE FROM listeners WHERE channel /* in: $1 */;

-- name: agent_parents
-- The parents of agents, as far as they can still receive a message.
SELECT agents.id, parents.mailbox, agents.session
FROM agents JOIN agents AS parents ON parents.id = agents.parent
WHERE agents.id /* in: $1 */ AND parents.status NOT IN ('completed', 'stopped');

-- name: agent_delete
-- Delete agents.
DELETE FROM agents WHERE id /* in: $1 */ RETURNING id;

-- name: agent_marks
-- What must not change before agents are deleted: incarnation, state, and whether they or their sessions have
-- checkpoints.
SELECT agents.id, status, epoch, ended, updated,
    coalesce((SELECT max(change) FROM state WHERE scope = agents.id), 0),
    EXISTS (SELECT 1 FROM checkpoints WHERE owner_kind = 'agent' AND owner = agents.id),
    EXISTS (SELECT 1 FROM checkpoints WHERE owner_kind IN ('session', 'composite') AND owner = agents.session)
FROM /* rows: agents.id $1 */;

-- name: agent_awaited
-- The agents among these that have an unfinished message in a mailbox, or hold one. One branch for each partial index.
WITH own (agent, mailbox) AS (
    SELECT id, mailbox FROM agents WHERE id /* in: $1 */
    UNION SELECT id, replies FROM agents WHERE id /* in: $1 */
    UNION SELECT agent, mailbox FROM subscriptions WHERE agent /* in: $1 */
)
SELECT agent FROM own
WHERE EXISTS (SELECT 1 FROM messages WHERE messages.mailbox = own.mailbox AND status = 'queued')
    OR EXISTS (SELECT 1 FROM messages WHERE messages.mailbox = own.mailbox AND status = 'scheduled')
    OR EXISTS (SELECT 1 FROM messages WHERE messages.mailbox = own.mailbox AND status = 'leased')
UNION
SELECT holder FROM messages /* sqlite: INDEXED BY messages_leased */
WHERE status = 'leased' AND holder /* in: $1 */;

-- name: agent_archive
-- Agents for an archive.
SELECT /* columns: stored_agent agents */
FROM /* rows: agents.id $1 */;

-- name: agent_failed
-- The agents that failed or are suspect, the latest first.
SELECT /* columns: agent */
FROM agents
WHERE status IN ('failed', 'suspect')
ORDER BY updated DESC, id
LIMIT $1;
