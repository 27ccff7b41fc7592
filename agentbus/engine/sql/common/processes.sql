-- name: process_insert
-- Register a process that opens the bus.
INSERT INTO processes (host, boot, pid, started, bell, watched, beat, created, every)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
RETURNING id;

-- name: process_peers
-- The other live processes of a process's host.
SELECT id, host, pid, started, bell FROM processes
WHERE status = 'live' AND id <> $1 AND host = (SELECT host FROM processes WHERE id = $1);

-- name: process_pid
-- The pid of a process.
SELECT pid FROM processes WHERE id = $1;

-- name: process_others
-- All other live processes, with their last heartbeat and its interval.
SELECT id, host, pid, started, bell, watched, beat, every FROM processes WHERE status = 'live' AND id <> $1 ORDER BY id;

-- name: process_of_other_boots
-- Live processes of another boot.
SELECT id FROM processes WHERE status = 'live' AND boot <> $1;

-- name: process_beat
-- Record a heartbeat.
UPDATE processes SET beat = $1, silent = 0 WHERE id = $2 AND status = 'live';

-- name: process_silent
-- Note when a sweep found a process silent that it cannot inspect.
UPDATE processes SET silent = $1 WHERE id = $2 AND status = 'live';

-- name: process_revive
-- Mark a process live again that was marked dead and sends heartbeats.
UPDATE processes SET beat = $1, silent = 0, status = 'live', ended = NULL
WHERE id = $2 AND status = 'dead' AND boot = (SELECT value FROM meta WHERE key = 'boot')
RETURNING id;

-- name: process_ended
-- Processes after a cursor that ended before a time.
SELECT id FROM processes WHERE id > $1 AND ended <= $2 ORDER BY id LIMIT $3;

-- name: process_live
-- All live processes.
SELECT id FROM processes WHERE status = 'live';

-- name: process_writers
-- The number of processes that have the bus open.
SELECT count(*) FROM processes WHERE status = 'live' AND watched = 0;

-- name: process_pids
-- The pids of the live processes.
SELECT pid FROM processes WHERE status = 'live' ORDER BY id;

-- name: process_bells
-- The doorbells of the live processes.
SELECT bell FROM processes WHERE status = 'live' AND bell IS NOT NULL;

-- name: process_places
-- The live processes, with what it takes to check them.
SELECT id, host, pid, started, bell FROM processes WHERE status = 'live';

-- name: process_of_host
-- The live processes of a host, with what it takes to check them.
SELECT id, pid, started, bell FROM processes WHERE status = 'live' AND host = $1;

-- name: process_newest_beat
-- The latest heartbeat of a boot.
SELECT coalesce(max(beat), 0) FROM processes WHERE status = 'live' AND boot = $1;

-- name: process_restore
-- Insert a process of an archive.
INSERT INTO processes (id, host, boot, pid, started, status, created, ended, beat)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 0)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: process_same
-- Whether a process is the one in an archive.
SELECT 1 FROM processes WHERE id = $1 AND pid = $2 AND created = $3;

-- name: process_end
-- End live processes. The end of a watched process whose agents have ended means nothing.
UPDATE processes SET
    status = CASE
        WHEN watched = 1
            AND NOT EXISTS (SELECT 1 FROM agents WHERE agents.process = processes.id AND agents.ended IS NULL)
        THEN 'ended' ELSE $1
    END,
    ended = $2
WHERE status = 'live' AND id /* in: $3 */
RETURNING id, status, boot, pid, beat;

-- name: process_beats
-- The last heartbeat of these processes, if they are live, and when a sweep has found them silent since.
SELECT id, pid, beat, silent, every FROM processes
WHERE status = 'live' AND watched = 0 AND id /* in: $1 */;

-- name: process_archive
-- Processes for an archive, ordered by id.
SELECT processes.id, host, boot, pid, started, status, created, ended
FROM /* rows: processes.id $1 */
/* postgres: ORDER BY id */;

-- name: process_references
-- The agents and sessions that refer to processes.
SELECT process, 'agent', id FROM agents WHERE process /* in: $1 */
UNION ALL
SELECT process, 'session', id FROM sessions WHERE process /* in: $1 */;

-- name: process_remove
-- Delete archived processes, unless an agent or a session refers to them.
DELETE FROM processes
WHERE id /* in: $1 */ AND status <> 'live'
    AND NOT EXISTS (SELECT 1 FROM agents WHERE agents.process = processes.id)
    AND NOT EXISTS (SELECT 1 FROM sessions WHERE sessions.process = processes.id)
RETURNING id;
