-- name: session_causes
-- The causes of interruptions: the owner of each session; the agent that failed last, why, and how many failed with it;
-- and whether an agent was expected by $2 (awake). Differs: IS NOT DISTINCT FROM.
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
-- Sessions before the cursor ($1, $2), newest first; a NULL filter matches all. Differs: a list that may be NULL states
-- its type.
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

-- name: session_follow_ons
-- The sessions that were started from one and still exist, newest first, by the audit log. Differs: JSON operators.
SELECT sessions.id
FROM events JOIN sessions ON sessions.id = (events.facts::json)->>'follow_on'
WHERE events.subject_kind = 'session' AND events.subject = $1 AND events.kind = 'session_recovered'
ORDER BY events.id DESC
LIMIT $2;

-- name: participant_payloads
-- Stored results of participants before the cursor, newest first, with their checksums. Differs: numbered by a column.
SELECT id, checksum, result, member, session FROM participants
WHERE result IS NOT NULL AND id < $1 ORDER BY id DESC LIMIT $2;
