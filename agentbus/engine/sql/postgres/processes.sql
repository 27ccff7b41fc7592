-- name: process_end
-- Processes that are still live cease to be. That a watched one is gone whose agents have ended means nothing.
-- Differs: lists are arrays.
UPDATE processes SET
    status = CASE
        WHEN watched = 1
            AND NOT EXISTS (SELECT 1 FROM agents WHERE agents.process = processes.id AND agents.ended IS NULL)
        THEN 'ended' ELSE $1
    END,
    ended = $2
WHERE status = 'live' AND id = ANY ($3)
RETURNING id, status, boot, pid, beat;

-- name: process_beats
-- When these processes last beat, if they are live, and when a sweep found them silent since. Differs: lists are arrays.
SELECT id, pid, beat, silent, every FROM processes
WHERE status = 'live' AND watched = 0 AND id = ANY ($1);

-- name: process_archive
-- Processes with all that outlives them. Differs: lists are arrays.
SELECT processes.id, host, boot, pid, started, status, created, ended
FROM processes
WHERE processes.id = ANY ($1)
ORDER BY id;

-- name: process_references
-- The agents and sessions that name processes. Differs: lists are arrays.
SELECT process, 'agent', id FROM agents WHERE process = ANY ($1)
UNION ALL
SELECT process, 'session', id FROM sessions WHERE process = ANY ($1);

-- name: process_remove
-- Processes that are archived go, unless an agent or a session names them. Differs: lists are arrays.
DELETE FROM processes
WHERE id = ANY ($1) AND status <> 'live'
    AND NOT EXISTS (SELECT 1 FROM agents WHERE agents.process = processes.id)
    AND NOT EXISTS (SELECT 1 FROM sessions WHERE sessions.process = processes.id)
RETURNING id;

-- name: process_restore
-- A process from an archive. Differs: ids that are given out later must be others.
WITH restored AS (
    INSERT INTO processes (id, host, boot, pid, started, status, created, ended, beat)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 0)
    ON CONFLICT DO NOTHING
    RETURNING id
)
SELECT id FROM restored WHERE identity_raise('processes', id);
