-- name: agent_standing
-- What operations must know of agents. Differs: lists by json_each; left alone, SQLite prefers the unique index to the
-- covering one and reads the row as well. A join, here and below, because IN copies the list into a b-tree first.
SELECT agents.id, agents.status, agents.epoch, agents.mailbox, agents.replies
FROM json_each($1) AS wanted CROSS JOIN agents INDEXED BY agents_standing ON agents.id = wanted.value;

-- name: agent_of_processes
-- The live agents of processes. Differs: lists by json_each.
SELECT id, process, last_call, busy_until, progress FROM agents
WHERE ended IS NULL AND process IN (SELECT value FROM json_each($1));

-- name: agent_of_status
-- The resident agents of processes that have this status. Differs: lists by json_each.
SELECT id, process, last_call, busy_until, progress FROM agents
WHERE ended IS NULL AND process IN (SELECT value FROM json_each($1)) AND status = $2 AND kind = 'resident';

-- name: agent_suspected
-- Those of these agents that are suspect, and why. Differs: lists by json_each.
SELECT agents.id, agents.evidence
FROM json_each($1) AS wanted CROSS JOIN agents ON agents.id = wanted.value
WHERE agents.status = 'suspect';

-- name: agent_overdue
-- Visiting agents of this status whose patience is over: at $2, and at $3; or at $4 where a process can be watched, which is
-- one of the host $6. Differs: the index is named because SQLite prefers to look at all agents of that status.
SELECT agents.id, agents.process, last_call, busy_until, progress, patience, processes.host IS $6
FROM agents INDEXED BY agents_visiting LEFT JOIN processes ON processes.id = agents.process
WHERE kind = 'visiting' AND agents.ended IS NULL AND agents.status = $1 AND last_call + patience < $2
    AND last_call + patience < CASE WHEN processes.host IS $6 THEN $4 ELSE $3 END
    AND (busy_until IS NULL OR busy_until + patience < $2)
ORDER BY last_call + patience
LIMIT $5;

-- name: agent_silent
-- Agents of this status that, as of the last beat of their process, had been silent for more than $2, and for longer than
-- their patience. $3 is $2 before now: no beat is later, so that the index alone rules most of them out.
-- Differs: the index is named because SQLite, once analyzed, goes by processes.
SELECT agents.id, agents.process, agents.last_call, agents.busy_until, agents.progress, processes.pid, processes.beat
FROM agents INDEXED BY agents_by_call CROSS JOIN processes ON processes.id = agents.process
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
-- Processes that listen to nothing any more. Differs: lists by json_each.
DELETE FROM listeners WHERE process IN (SELECT value FROM json_each($1));

-- name: listener_remove
-- Channels that nobody listens to any more. Differs: lists by json_each.
DELETE FROM listeners WHERE channel IN (SELECT value FROM json_each($1));

-- name: listeners_of
-- Whom to ring for each channel. Differs: lists by json_each.
SELECT listeners.channel, processes.bell
FROM json_each($1) AS wanted
JOIN listeners ON listeners.channel = wanted.value
JOIN processes ON processes.id = listeners.process
WHERE processes.status = 'live' AND processes.bell IS NOT NULL AND processes.id <> $2;

-- name: agent_parents
-- The parents of agents that can still read a message. Differs: lists by json_each.
SELECT agents.id, parents.mailbox, agents.session
FROM agents JOIN agents AS parents ON parents.id = agents.parent
WHERE agents.id IN (SELECT value FROM json_each($1)) AND parents.status NOT IN ('completed', 'stopped');

-- name: agent_delete
-- Agents that are gone for good. Differs: lists by json_each.
DELETE FROM agents WHERE id IN (SELECT value FROM json_each($1)) RETURNING id;

-- name: agent_list
-- Agents after the cursor, in the order of their ids; a NULL filter takes all. Differs: lists by json_each.
SELECT id, name, type, kind, session, milestone, parent, capabilities, model, prompt, load, estimate, metadata,
    status, progress, note, process, epoch, patience, last_call, busy_until, created, started, updated, ended, error,
    evidence
FROM agents
WHERE id > $1
    AND ($2 IS NULL OR status IN (SELECT value FROM json_each($2)))
    AND ($3 IS NULL OR type = $3)
    AND ($4 IS NULL OR session = $4)
    AND ($5 IS NULL OR parent = $5)
    AND ($6 IS NULL OR kind = $6)
    AND ($7 IS NULL OR EXISTS (SELECT 1 FROM json_each(capabilities) WHERE value = $7))
ORDER BY id
LIMIT $8;

-- name: agent_marks
-- What must not have changed when agents go: their life, their state, and whether they or their sessions have checkpoints.
-- Differs: lists by json_each.
SELECT agents.id, status, epoch, ended, updated,
    coalesce((SELECT max(change) FROM state WHERE scope = agents.id), 0),
    EXISTS (SELECT 1 FROM checkpoints WHERE owner_kind = 'agent' AND owner = agents.id),
    EXISTS (SELECT 1 FROM checkpoints WHERE owner_kind IN ('session', 'composite') AND owner = agents.session)
FROM json_each($1) AS wanted CROSS JOIN agents ON agents.id = wanted.value;

-- name: agent_awaited
-- Which of these agents have an open message: in a mailbox of theirs, or in their hands.
-- Differs: lists by json_each; one branch for each partial index.
WITH own (agent, mailbox) AS (
    SELECT id, mailbox FROM agents WHERE id IN (SELECT value FROM json_each($1))
    UNION SELECT id, replies FROM agents WHERE id IN (SELECT value FROM json_each($1))
    UNION SELECT agent, mailbox FROM subscriptions WHERE agent IN (SELECT value FROM json_each($1))
)
SELECT agent FROM own
WHERE EXISTS (SELECT 1 FROM messages WHERE messages.mailbox = own.mailbox AND status = 'queued')
    OR EXISTS (SELECT 1 FROM messages WHERE messages.mailbox = own.mailbox AND status = 'scheduled')
    OR EXISTS (SELECT 1 FROM messages WHERE messages.mailbox = own.mailbox AND status = 'leased')
UNION
SELECT holder FROM messages INDEXED BY messages_leased
WHERE status = 'leased' AND holder IN (SELECT value FROM json_each($1));

-- name: agent_archive
-- Agents with all that outlives a boot. Differs: lists by json_each.
SELECT agents.id, name, agents.type, kind, session, milestone, agents.parent, capabilities, model, prompt, load,
    estimate, metadata, status, progress, note, epoch, patience, error, evidence, created, started, updated, ended
FROM json_each($1) AS wanted CROSS JOIN agents ON agents.id = wanted.value;
