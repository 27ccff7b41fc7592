-- name: session_trouble
-- Agents of these sessions failed. Differs: lists are arrays.
UPDATE sessions SET troubled = 1
WHERE ended IS NULL AND id IN (SELECT session FROM agents WHERE id = ANY ($1));

-- name: session_interrupt
-- Of the sessions of agents ($2), those that processes own ($3) and those named ($4), interrupt the active ones that nobody is
-- at work in and that something happened to: an agent failed, its owner is gone, or it was resumed and nobody came until $5.
-- Differs: lists are arrays.
UPDATE sessions SET status = 'interrupted', updated = $1
WHERE id IN (
        SELECT session FROM agents WHERE id = ANY ($2)
        UNION SELECT id FROM sessions WHERE ended IS NULL AND process = ANY ($3)
        UNION SELECT unnest($4::text[])
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
        OR (process IS NULL AND resume_by <= $5)
    )
RETURNING id;

-- name: session_causes
-- What speaks for having interrupted sessions: their owners; of their agents the one that failed last, why, and how many
-- failed with it; and whether somebody was to come until $2. Differs: lists are arrays.
SELECT sessions.id, sessions.process, processes.status, agents.id, agents.error,
    (
        SELECT count(*) FROM agents AS others
        WHERE others.session = sessions.id AND others.status = 'failed' AND others.id <> agents.id
            AND others.ended = agents.ended AND others.error IS NOT DISTINCT FROM agents.error
    ),
    CASE WHEN sessions.resume_by <= $2 THEN 1 ELSE 0 END
FROM sessions
LEFT JOIN processes ON processes.id = sessions.process
LEFT JOIN agents ON sessions.troubled = 1 AND agents.id = (
    SELECT last.id FROM agents AS last
    WHERE last.session = sessions.id AND last.status = 'failed'
    ORDER BY last.ended DESC, last.id
    LIMIT 1
)
WHERE sessions.id = ANY ($1);

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

-- name: session_follow_ons
-- The sessions that were started from one and are still there, newest first; the trail has them. Differs: JSON is
-- opened in other words.
SELECT sessions.id
FROM events JOIN sessions ON sessions.id = (events.facts::json)->>'follow_on'
WHERE events.subject_kind = 'session' AND events.subject = $1 AND events.kind = 'session_recovered'
ORDER BY events.id DESC
LIMIT $2;

-- name: recovery_dead_holders
-- Agents that failed while work waits for them, in a session that has not ended or in none. Differs: no index needs to be
-- named.
SELECT id FROM agents
WHERE status = 'failed' AND (
    EXISTS (SELECT 1 FROM messages WHERE messages.mailbox = agents.mailbox AND messages.status = 'queued')
    OR EXISTS (SELECT 1 FROM messages WHERE messages.mailbox = agents.mailbox AND messages.status = 'scheduled')
    OR EXISTS (SELECT 1 FROM messages WHERE messages.mailbox = agents.mailbox AND messages.status = 'leased')
)
AND (session IS NULL OR EXISTS (SELECT 1 FROM sessions WHERE sessions.id = agents.session AND sessions.ended IS NULL))
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

-- name: participant_payloads
-- Stored results of participants with their checksums, newest first, before the cursor. Differs: numbered by a column.
SELECT id, checksum, result, member, session FROM participants
WHERE result IS NOT NULL AND id < $1 ORDER BY id DESC LIMIT $2;
