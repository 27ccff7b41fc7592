-- name: session_trouble
-- Agents of these sessions failed. Differs: lists by json_each.
UPDATE sessions SET troubled = 1
WHERE ended IS NULL AND id IN (SELECT session FROM agents WHERE id IN (SELECT value FROM json_each($1)));

-- name: session_interrupt
-- Of the sessions of agents ($2), those that processes own ($3) and those named ($4), interrupt the active ones that nobody is
-- at work in and that something happened to: an agent failed, its owner is gone, or it was resumed and nobody came until $5
-- (awake). Differs: lists by json_each.
UPDATE sessions SET status = 'interrupted', updated = $1
WHERE id IN (
        SELECT session FROM agents WHERE id IN (SELECT value FROM json_each($2))
        UNION SELECT id FROM sessions WHERE ended IS NULL AND process IN (SELECT value FROM json_each($3))
        UNION SELECT value FROM json_each($4)
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
-- failed with it; and whether somebody was to come until $2 (awake). Differs: lists by json_each.
SELECT sessions.id, sessions.process, processes.status, agents.id, agents.error,
    (
        SELECT count(*) FROM agents AS others
        WHERE others.session = sessions.id AND others.status = 'failed' AND others.id <> agents.id
            AND others.ended = agents.ended AND others.error IS agents.error
    ),
    coalesce(sessions.resume_by <= $2, 0)
FROM json_each($1) AS wanted CROSS JOIN sessions ON sessions.id = wanted.value
LEFT JOIN processes ON processes.id = sessions.process
LEFT JOIN agents ON sessions.troubled = 1 AND agents.id = (
    SELECT last.id FROM agents AS last
    WHERE last.session = sessions.id AND last.status = 'failed'
    ORDER BY last.ended DESC, last.id
    LIMIT 1
);

-- name: session_list
-- Sessions, newest first, before the cursor ($1, $2); a NULL filter takes all. Differs: lists by json_each.
SELECT id, operation, milestone, status, progress, process, expected, metadata, created, updated, ended, error,
    status = 'active' AND troubled = 1
        AND EXISTS (SELECT 1 FROM agents WHERE agents.session = sessions.id AND agents.status = 'failed')
FROM sessions
WHERE (created, id) < ($1, $2)
    AND ($3 IS NULL OR status IN (SELECT value FROM json_each($3)))
    AND ($4 IS NULL OR operation = $4)
    AND ($5 IS NULL OR milestone = $5)
ORDER BY created DESC, id DESC
LIMIT $6;

-- name: session_list_open
-- Open sessions of these statuses, newest first, before the cursor ($1, $2); a NULL filter takes all. Those that have
-- ended, which are most of them, are not walked over. Differs: lists by json_each.
SELECT id, operation, milestone, status, progress, process, expected, metadata, created, updated, ended, error,
    status = 'active' AND troubled = 1
        AND EXISTS (SELECT 1 FROM agents WHERE agents.session = sessions.id AND agents.status = 'failed')
FROM sessions
WHERE ended IS NULL AND status IN (SELECT value FROM json_each($3))
    AND (created, id) < ($1, $2)
    AND ($4 IS NULL OR operation = $4)
    AND ($5 IS NULL OR milestone = $5)
ORDER BY created DESC, id DESC
LIMIT $6;

-- name: session_follow_ons
-- The sessions that were started from one and are still there, newest first; the trail has them. Differs:
-- json_extract.
SELECT sessions.id
FROM events JOIN sessions ON sessions.id = json_extract(events.facts, '$.follow_on')
WHERE events.subject_kind = 'session' AND events.subject = $1 AND events.kind = 'session_recovered'
ORDER BY events.id DESC
LIMIT $2;

-- name: recovery_dead_holders
-- Agents that failed while work waits for them, in a session that has not ended or in none. Differs: the index is named because SQLite, once analyzed, walks all
-- agents in the order of their ids instead.
SELECT id FROM agents INDEXED BY agents_by_status
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
-- as long as fetching them. Differs: CROSS JOIN, because SQLite would walk all agents that ever failed instead.
SELECT status, type, session, created FROM agents WHERE status IN ('pending', 'spawning', 'running', 'suspect')
UNION ALL
SELECT agents.status, agents.type, agents.session, agents.created
FROM sessions CROSS JOIN agents ON agents.session = sessions.id AND agents.status IN ('failed', 'stopped')
WHERE sessions.ended IS NULL AND sessions.status IN ('active', 'paused', 'interrupted');

-- name: session_archive
-- Ended sessions with all that they have. Differs: lists by json_each.
SELECT sessions.id, operation, milestone, status, progress, troubled, expected, metadata, error, created, updated, ended
FROM json_each($1) AS wanted CROSS JOIN sessions ON sessions.id = wanted.value;

-- name: participant_archive
-- Who took part in sessions. Differs: lists by json_each.
SELECT session, meeting, member, position, created, finished, checksum, result
FROM json_each($1) AS wanted CROSS JOIN participants ON participants.session = wanted.value;

-- name: participant_payloads
-- Stored results of participants with their checksums, newest first, before the cursor. Differs: numbered by rowid.
SELECT rowid, checksum, result, member, session FROM participants
WHERE result IS NOT NULL AND rowid < $1 ORDER BY rowid DESC LIMIT $2;
