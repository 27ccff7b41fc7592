-- name: session_trouble
-- Agents of these sessions failed. Differs: lists are arrays.
UPDATE sessions SET troubled = 1
WHERE ended IS NULL AND id IN (SELECT session FROM agents WHERE id = ANY ($1));

-- name: session_interrupt
-- Of the sessions of agents ($3), those that processes own ($4) and those named ($5), interrupt the active ones that nobody is
-- at work in and that something happened to: an agent failed, or its owner is gone. Differs: lists are arrays.
UPDATE sessions SET status = 'interrupted', error = $1, updated = $2
WHERE id IN (
        SELECT session FROM agents WHERE id = ANY ($3)
        UNION SELECT id FROM sessions WHERE ended IS NULL AND process = ANY ($4)
        UNION SELECT unnest($5::text[])
    )
    AND status = 'active'
    AND NOT EXISTS (
        SELECT 1 FROM agents
        WHERE agents.session = sessions.id AND agents.status IN ('running', 'suspect', 'spawning')
    )
    AND (
        (troubled = 1 AND EXISTS (
            SELECT 1 FROM agents WHERE agents.session = sessions.id AND agents.status = 'failed'
        ))
        OR EXISTS (SELECT 1 FROM processes WHERE processes.id = sessions.process AND processes.status <> 'live')
    )
RETURNING id;

-- name: session_list
-- Sessions, newest first, before the cursor ($1, $2); a NULL filter takes all. Differs: lists are arrays.
SELECT id, operation, milestone, status, progress, process, expected, metadata, created, updated, ended, error,
    status = 'active' AND troubled = 1
        AND EXISTS (SELECT 1 FROM agents WHERE agents.session = sessions.id AND agents.status = 'failed')
FROM sessions
WHERE (created, id) < ($1, $2)
    AND (CAST($3 AS text[]) IS NULL OR status = ANY ($3))
    AND (CAST($4 AS text) IS NULL OR operation = $4)
    AND (CAST($5 AS text) IS NULL OR milestone = $5)
ORDER BY created DESC, id DESC
LIMIT $6;

-- name: session_list_open
-- Open sessions of these statuses, newest first, before the cursor ($1, $2); a NULL filter takes all. Those that have
-- ended, which are most of them, are not walked over. Differs: lists are arrays.
SELECT id, operation, milestone, status, progress, process, expected, metadata, created, updated, ended, error,
    status = 'active' AND troubled = 1
        AND EXISTS (SELECT 1 FROM agents WHERE agents.session = sessions.id AND agents.status = 'failed')
FROM sessions
WHERE ended IS NULL AND status = ANY ($3)
    AND (created, id) < ($1, $2)
    AND (CAST($4 AS text) IS NULL OR operation = $4)
    AND (CAST($5 AS text) IS NULL OR milestone = $5)
ORDER BY created DESC, id DESC
LIMIT $6;

-- name: recovery_dead_holders
-- Agents that failed while work waits for them. Differs: no index needs to be named.
SELECT id FROM agents
WHERE status = 'failed' AND (
    EXISTS (SELECT 1 FROM messages WHERE messages.mailbox = agents.mailbox AND messages.status = 'queued')
    OR EXISTS (SELECT 1 FROM messages WHERE messages.mailbox = agents.mailbox AND messages.status = 'scheduled')
    OR EXISTS (SELECT 1 FROM messages WHERE messages.mailbox = agents.mailbox AND messages.status = 'leased')
)
ORDER BY id
LIMIT $1;

-- name: recovery_incomplete
-- The agents that have not ended, and those of open sessions that failed or stopped. Counting them here would take twice
-- as long as fetching them. Differs: no order of the joins needs to be told.
SELECT status, type, session, created FROM agents WHERE status IN ('pending', 'spawning', 'running', 'suspect')
UNION ALL
SELECT agents.status, agents.type, agents.session, agents.created
FROM sessions JOIN agents ON agents.session = sessions.id AND agents.status IN ('failed', 'stopped')
WHERE sessions.ended IS NULL AND sessions.status IN ('active', 'paused', 'interrupted');

-- name: session_archive
-- Ended sessions with all that they have. Differs: lists are arrays.
SELECT sessions.id, operation, milestone, status, progress, troubled, expected, metadata, error, created, updated, ended
FROM sessions
WHERE sessions.id = ANY ($1)
ORDER BY id;

-- name: participant_archive
-- Who took part in sessions. Differs: lists are arrays.
SELECT session, meeting, member, position, created, finished, checksum, result
FROM participants
WHERE participants.session = ANY ($1)
ORDER BY session, meeting, position;
