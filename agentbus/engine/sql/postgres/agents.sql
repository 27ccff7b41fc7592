-- name: agent_statuses
-- The status, the epoch and the mailboxes of agents. Differs: SQLite needs a join and a named index.
SELECT id, status, epoch, mailbox, replies FROM agents WHERE id = ANY ($1);

-- name: agent_overdue
-- Visiting agents of this status whose patience ended: before $2, and before $3; or before $4 where their process can
-- be checked, on the host $6. Differs: parameters without a context must state their type.
SELECT agents.id, agents.process, last_call, busy_until, progress, patience,
    CASE WHEN processes.host IS NOT DISTINCT FROM CAST($6 AS text) THEN 1 ELSE 0 END
FROM agents LEFT JOIN processes ON processes.id = agents.process
WHERE kind = 'visiting' AND agents.ended IS NULL AND agents.status = $1 AND last_call + patience < $2
    AND last_call + patience
        < CASE WHEN processes.host IS NOT DISTINCT FROM $6 THEN CAST($4 AS bigint) ELSE CAST($3 AS bigint) END
    AND (busy_until IS NULL OR busy_until + patience < $2)
ORDER BY last_call + patience
LIMIT $5;

-- name: listeners_of
-- Notify the processes that listen to these channels, each once. A payload that would be too long is sent as *: check
-- everything. Differs: NOTIFY finds and notifies the listeners in one statement, and does not wait for the disk.
SELECT pg_notify(bell, CASE WHEN octet_length(channels) < 7900 THEN channels ELSE '*' END),
    set_config('synchronous_commit', 'off', true)
FROM (
    SELECT processes.bell, string_agg(wanted.channel, E'\n') AS channels
    FROM unnest($1::text[]) AS wanted (channel)
    JOIN listeners ON listeners.channel = split_part(wanted.channel, '#', 1)
    JOIN processes ON processes.id = listeners.process
    WHERE processes.status = 'live' AND processes.bell IS NOT NULL AND processes.id <> $2
    GROUP BY processes.bell
) AS bells;

-- name: agent_list
-- Agents after the cursor, ordered by id; a NULL filter matches all. Differs: JSON functions, and a list that may be
-- NULL states its type.
SELECT /* columns: agent */
FROM agents
WHERE id > $1
    AND (CAST($2 AS text[]) IS NULL OR status = ANY ($2))
    AND (CAST($3 AS text) IS NULL OR type = $3)
    AND (CAST($4 AS text) IS NULL OR session = $4)
    AND (CAST($5 AS text) IS NULL OR parent = $5)
    AND (CAST($6 AS text) IS NULL OR kind = $6)
    AND (CAST($7 AS text) IS NULL OR $7 IN (SELECT json_array_elements_text(capabilities::json)))
    AND (CAST($9 AS bigint) IS NULL OR updated >= $9)
ORDER BY id
LIMIT $8;
