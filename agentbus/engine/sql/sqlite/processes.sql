-- name: process_end
-- Processes that are still live cease to be. That a watched one is gone whose agents have ended means nothing.
-- Differs: lists by json_each.
UPDATE processes SET
    status = CASE
        WHEN watched = 1
            AND NOT EXISTS (SELECT 1 FROM agents WHERE agents.process = processes.id AND agents.ended IS NULL)
        THEN 'ended' ELSE $1
    END,
    ended = $2
WHERE status = 'live' AND id IN (SELECT value FROM json_each($3))
RETURNING id, status, boot, pid, beat;

-- name: process_beats
-- When these processes last beat, if they are live, and when a sweep found them silent since. Differs: lists by json_each.
SELECT id, pid, beat, silent, every FROM processes
WHERE status = 'live' AND watched = 0 AND id IN (SELECT value FROM json_each($1));

-- name: process_archive
-- Processes with all that outlives them. Differs: lists by json_each.
SELECT processes.id, host, boot, pid, started, status, created, ended
FROM json_each($1) AS wanted CROSS JOIN processes ON processes.id = wanted.value;

-- name: process_references
-- The agents and sessions that name processes. Differs: lists by json_each.
SELECT process, 'agent', id FROM agents WHERE process IN (SELECT value FROM json_each($1))
UNION ALL
SELECT process, 'session', id FROM sessions WHERE process IN (SELECT value FROM json_each($1));

-- name: process_remove
-- Processes that are archived go, unless an agent or a session names them. Differs: lists by json_each.
DELETE FROM processes
WHERE id IN (SELECT value FROM json_each($1)) AND status <> 'live'
    AND NOT EXISTS (SELECT 1 FROM agents WHERE agents.process = processes.id)
    AND NOT EXISTS (SELECT 1 FROM sessions WHERE sessions.process = processes.id)
RETURNING id;
