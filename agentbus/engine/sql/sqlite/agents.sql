-- name: agent_statuses
-- The status, the epoch and the mailboxes of agents. Differs: SQLite prefers the unique index to the covering one and
-- reads the row as well, therefore the index is named.
SELECT agents.id, agents.status, agents.epoch, agents.mailbox, agents.replies
FROM json_each($1) AS wanted CROSS JOIN agents INDEXED BY agents_standing ON agents.id = wanted.value;

-- name: agent_overdue
-- Visiting agents of this status whose patience ended: before $2, and before $3; or before $4 where their process can
-- be checked, on the host $6. Differs: SQLite would read all agents of that status, therefore the index is named.
SELECT agents.id, agents.process, last_call, busy_until, progress, patience, processes.host IS $6
FROM agents INDEXED BY agents_visiting LEFT JOIN processes ON processes.id = agents.process
WHERE kind = 'visiting' AND agents.ended IS NULL AND agents.status = $1 AND last_call + patience < $2
    AND last_call + patience < CASE WHEN processes.host IS $6 THEN $4 ELSE $3 END
    AND (busy_until IS NULL OR busy_until + patience < $2)
ORDER BY last_call + patience
LIMIT $5;

-- name: listeners_of
-- The doorbells of each channel. Differs: processes ring doorbells themselves.
SELECT listeners.channel, processes.bell
FROM json_each($1) AS wanted
JOIN listeners ON listeners.channel = wanted.value
JOIN processes ON processes.id = listeners.process
WHERE processes.status = 'live' AND processes.bell IS NOT NULL AND processes.id <> $2;

-- name: agent_list
-- Agents after the cursor, ordered by id; a NULL filter matches all. Differs: JSON functions, and a list that may be
-- NULL states no type.
SELECT /* columns: agent */
FROM agents
WHERE id > $1
    AND ($2 IS NULL OR status IN (SELECT value FROM json_each($2)))
    AND ($3 IS NULL OR type = $3)
    AND ($4 IS NULL OR session = $4)
    AND ($5 IS NULL OR parent = $5)
    AND ($6 IS NULL OR kind = $6)
    AND ($7 IS NULL OR EXISTS (SELECT 1 FROM json_each(capabilities) WHERE value = $7))
    AND ($9 IS NULL OR updated >= $9)
ORDER BY id
LIMIT $8;
