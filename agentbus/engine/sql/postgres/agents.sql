-- name: agent_standing
-- What operations must know of agents. Differs: lists are arrays, here and everywhere.
SELECT id, status, epoch, mailbox, replies FROM agents WHERE id = ANY ($1);

-- name: agent_of_processes
-- The live agents of processes. Differs: lists are arrays.
SELECT id, process, last_call, busy_until, progress FROM agents
WHERE ended IS NULL AND process = ANY ($1);

-- name: agent_of_status
-- The resident agents of processes that have this status. Differs: lists are arrays.
SELECT id, process, last_call, busy_until, progress FROM agents
WHERE ended IS NULL AND process = ANY ($1) AND status = $2 AND kind = 'resident';

-- name: agent_suspected
-- Those of these agents that are suspect, and why. Differs: lists are arrays.
SELECT agents.id, agents.evidence
FROM agents
WHERE agents.id = ANY ($1)
    AND agents.status = 'suspect';

-- name: agent_overdue
-- Visiting agents of this status whose patience is over: at $2, and at $3; or at $4 where a process can be watched, which is
-- one of the host $6. Differs: parameters that stand by themselves must say their type.
SELECT agents.id, agents.process, last_call, busy_until, progress, patience,
    CASE WHEN processes.host IS NOT DISTINCT FROM CAST($6 AS text) THEN 1 ELSE 0 END
FROM agents LEFT JOIN processes ON processes.id = agents.process
WHERE kind = 'visiting' AND agents.ended IS NULL AND agents.status = $1 AND last_call + patience < $2
    AND last_call + patience
        < CASE WHEN processes.host IS NOT DISTINCT FROM $6 THEN CAST($4 AS bigint) ELSE CAST($3 AS bigint) END
    AND (busy_until IS NULL OR busy_until + patience < $2)
ORDER BY last_call + patience
LIMIT $5;

-- name: agent_silent
-- Agents of this status that, as of the last beat of their process, had been silent for more than $2, and for longer than
-- their patience. $3 is $2 before now: no beat is later, so that the index alone rules most of them out.
-- Differs: no index needs to be named.
SELECT agents.id, agents.process, agents.last_call, agents.busy_until, agents.progress, processes.pid, processes.beat
FROM agents JOIN processes ON processes.id = agents.process
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
-- Processes that listen to nothing any more. Differs: lists are arrays.
DELETE FROM listeners WHERE process = ANY ($1);

-- name: listener_remove
-- Channels that nobody listens to any more. Differs: lists are arrays.
DELETE FROM listeners WHERE channel = ANY ($1);

-- name: listeners_of
-- Ring the processes that listen to these channels, each once. What would not fit is rung as *: look at everything.
-- Differs: notifications are the bells, so that finding and ringing them is one statement.
SELECT pg_notify(bell, CASE WHEN octet_length(channels) < 7900 THEN channels ELSE '*' END)
FROM (
    SELECT processes.bell, string_agg(wanted.channel, E'\n') AS channels
    FROM unnest($1::text[]) AS wanted (channel)
    JOIN listeners ON listeners.channel = split_part(wanted.channel, '#', 1)
    JOIN processes ON processes.id = listeners.process
    WHERE processes.status = 'live' AND processes.bell IS NOT NULL AND processes.id <> $2
    GROUP BY processes.bell
) AS bells;

-- name: agent_parents
-- The parents of agents that can still read a message. Differs: lists are arrays.
SELECT agents.id, parents.mailbox, agents.session
FROM agents JOIN agents AS parents ON parents.id = agents.parent
WHERE agents.id = ANY ($1) AND parents.status NOT IN ('completed', 'stopped');

-- name: agent_delete
-- Agents that are gone for good. Differs: lists are arrays.
DELETE FROM agents WHERE id = ANY ($1) RETURNING id;

-- name: agent_list
-- Agents after the cursor, in the order of their ids; a NULL filter takes all. Differs: lists are arrays.
SELECT id, name, type, kind, session, milestone, parent, capabilities, model, prompt, load, estimate, metadata,
    status, progress, note, process, epoch, patience, last_call, busy_until, created, started, updated, ended, error,
    evidence
FROM agents
WHERE id > $1
    AND (CAST($2 AS text[]) IS NULL OR status = ANY ($2))
    AND (CAST($3 AS text) IS NULL OR type = $3)
    AND (CAST($4 AS text) IS NULL OR session = $4)
    AND (CAST($5 AS text) IS NULL OR parent = $5)
    AND (CAST($6 AS text) IS NULL OR kind = $6)
    AND (CAST($7 AS text) IS NULL OR $7 IN (SELECT json_array_elements_text(capabilities::json)))
ORDER BY id
LIMIT $8;

-- name: agent_marks
-- What must not have changed when agents go: their life, their state, and whether they or their sessions have checkpoints.
-- Differs: lists are arrays.
SELECT agents.id, status, epoch, ended, updated,
    coalesce((SELECT max(change) FROM state WHERE scope = agents.id), 0),
    EXISTS (SELECT 1 FROM checkpoints WHERE owner_kind = 'agent' AND owner = agents.id),
    EXISTS (SELECT 1 FROM checkpoints WHERE owner_kind IN ('session', 'composite') AND owner = agents.session)
FROM agents
WHERE agents.id = ANY ($1);

-- name: agent_awaited
-- Which of these agents have an open message: in a mailbox of theirs, or in their hands.
-- Differs: lists are arrays; one branch for each partial index.
WITH own (agent, mailbox) AS (
    SELECT id, mailbox FROM agents WHERE id = ANY ($1)
    UNION SELECT id, replies FROM agents WHERE id = ANY ($1)
    UNION SELECT agent, mailbox FROM subscriptions WHERE agent = ANY ($1)
)
SELECT agent FROM own
WHERE EXISTS (SELECT 1 FROM messages WHERE messages.mailbox = own.mailbox AND status = 'queued')
    OR EXISTS (SELECT 1 FROM messages WHERE messages.mailbox = own.mailbox AND status = 'scheduled')
    OR EXISTS (SELECT 1 FROM messages WHERE messages.mailbox = own.mailbox AND status = 'leased')
UNION
SELECT holder FROM messages
WHERE status = 'leased' AND holder = ANY ($1);

-- name: agent_archive
-- Agents with all that outlives a boot. Differs: lists are arrays.
SELECT agents.id, name, agents.type, kind, session, milestone, agents.parent, capabilities, model, prompt, load,
    estimate, metadata, status, progress, note, epoch, patience, error, evidence, created, started, updated, ended
FROM agents
WHERE agents.id = ANY ($1);
