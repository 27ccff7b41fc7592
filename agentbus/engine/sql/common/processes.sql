-- name: process_insert
-- A process opens the bus.
INSERT INTO processes (host, boot, pid, started, bell, watched, beat, created, every)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
RETURNING id;

-- name: process_neighbours
-- The other live processes of a process's host.
SELECT id, host, pid, started, bell FROM processes
WHERE status = 'live' AND id <> $1 AND host = (SELECT host FROM processes WHERE id = $1);

-- name: process_others
-- Every other process that counts as live, when it last beat, and how often it does.
SELECT id, host, pid, started, bell, watched, beat, every FROM processes WHERE status = 'live' AND id <> $1 ORDER BY id;

-- name: process_of_other_boots
-- Live processes that belong to another boot.
SELECT id FROM processes WHERE status = 'live' AND boot <> $1;

-- name: process_beat
-- A process is alive.
UPDATE processes SET beat = $1, silent = 0 WHERE id = $2 AND status = 'live';

-- name: process_silent
-- A sweep found a process silent, at this time, that it cannot see.
UPDATE processes SET silent = $1 WHERE id = $2 AND status = 'live';

-- name: process_revive
-- A process that counted as dead, and beats.
UPDATE processes SET beat = $1, silent = 0, status = 'live', ended = NULL
WHERE id = $2 AND status = 'dead' AND boot = (SELECT value FROM meta WHERE key = 'boot')
RETURNING id;

-- name: process_ended
-- Processes after one that ceased to be before a time.
SELECT id FROM processes WHERE id > $1 AND ended <= $2 ORDER BY id LIMIT $3;

-- name: process_live
-- Every process that counts as live.
SELECT id FROM processes WHERE status = 'live';

-- name: process_writers
-- How many processes have the bus open.
SELECT count(*) FROM processes WHERE status = 'live' AND watched = 0;

-- name: process_pids
-- The pids of the processes that count as live.
SELECT pid FROM processes WHERE status = 'live' ORDER BY id;

-- name: process_bells
-- The doorbells of the processes that count as live.
SELECT bell FROM processes WHERE status = 'live' AND bell IS NOT NULL;

-- name: process_places
-- The processes that count as live: enough to find out whether they are.
SELECT id, host, pid, started, bell FROM processes WHERE status = 'live';

-- name: process_of_host
-- The processes of a host that count as live: enough to find out whether they are.
SELECT id, pid, started, bell FROM processes WHERE status = 'live' AND host = $1;

-- name: process_newest_beat
-- The latest beat of a boot.
SELECT coalesce(max(beat), 0) FROM processes WHERE status = 'live' AND boot = $1;

-- name: process_restore
-- A process from an archive.
INSERT INTO processes (id, host, boot, pid, started, status, created, ended, beat)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 0)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: process_same
-- Whether a process is the one that an archive has.
SELECT 1 FROM processes WHERE id = $1 AND pid = $2 AND created = $3;
