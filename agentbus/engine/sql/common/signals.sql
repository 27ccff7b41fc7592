-- name: signal_insert
-- Store a signal for a task.
INSERT INTO signals (task, name, signal_id, sender, created, checksum, value)
VALUES ($1, $2, $3, $4, $5, $6, $7)
RETURNING id;

-- name: signal_known
-- The signal of a task that was sent before under an id.
SELECT name, value FROM signals WHERE task = $1 AND signal_id = $2;

-- name: signal_waiting
-- Whether a signal of this name waits for a task.
SELECT 1 FROM signals WHERE task = $1 AND name = $2 AND position IS NULL LIMIT 1;

-- name: signal_unreceived
-- The signals of a task that it has not received, oldest first.
SELECT signals.name, coalesce(signals.signal_id, 's-' || signals.id), signals.sender, signals.created
FROM signals JOIN tasks ON tasks.number = signals.task
WHERE tasks.id = $1 AND signals.position IS NULL
ORDER BY signals.id
LIMIT $2;

-- name: signal_take
-- Give the oldest signal of a name that waits for a task to the step at position $1.
UPDATE signals SET position = $1
WHERE id = (SELECT id FROM signals WHERE task = $2 AND name = $3 AND position IS NULL ORDER BY id LIMIT 1)
RETURNING checksum, value;

-- name: signal_give_back
-- Take the signal from a step that is repeated.
UPDATE signals SET position = NULL WHERE task = $1 AND position = $2;

-- name: signal_archive
-- All signals of a task.
SELECT signals.name, signals.signal_id, signals.sender, signals.position, signals.created, signals.checksum,
    signals.value
FROM signals JOIN tasks ON tasks.number = signals.task
WHERE tasks.id = $1
ORDER BY signals.id;

-- name: signal_restore
-- Insert a signal of an archive.
INSERT INTO signals (task, name, signal_id, sender, position, created, checksum, value)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8);

-- name: signal_delete
-- Delete the signals of a task.
DELETE FROM signals WHERE task = (SELECT number FROM tasks WHERE id = $1);

-- name: signal_payloads
-- Stored values of signals before a number, newest first, with their checksums.
SELECT signals.id, signals.checksum, signals.value, signals.name, tasks.id
FROM signals JOIN tasks ON tasks.number = signals.task
WHERE signals.id < $1
ORDER BY signals.id DESC
LIMIT $2;
