-- name: step_unsettled
-- Steps of unknown outcome that a person has to decide, of tasks that no worker holds.
SELECT tasks.id, steps.key, tasks.updated
FROM tasks JOIN steps ON steps.task = tasks.number
WHERE (tasks.status = 'waiting' OR tasks.status = 'pending') AND tasks.waits LIKE '%"step:%'
    AND steps.kind = 'step' AND steps.superseded = 0 AND steps.status = 'unknown'
ORDER BY tasks.number, steps.position
LIMIT $1;

-- name: step_insert
-- Record a step that starts, a sub-task, or a step that is done at once.
INSERT INTO steps (
    task, kind, key, name, position, status, main, once, digest, note, child, started, finished, checksum, result,
    seen, ending, trace
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18);

-- name: step_wait
-- Record a wait that starts, or that is over at once.
INSERT INTO steps (
    task, kind, key, name, position, status, main, once, digest, note, child, started, finished, checksum, result,
    seen, ending, trace, due, message, error
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21);

-- name: step_wait_again
-- Start a wait again that the workflow had abandoned.
UPDATE steps SET status = 'waiting', started = $1, due = $2, finished = NULL
WHERE task = $3 AND kind = $4 AND key = $5 AND superseded = 0 AND status = 'cancelled';

-- name: step_wait_over
-- End a wait: with what it was for, or because its time has passed.
UPDATE steps SET
    status = $1, finished = $2, checksum = $3, result = $4, error = $5, ending = $6, message = $7, due = NULL
WHERE task = $8 AND kind = $9 AND key = $10 AND superseded = 0;

-- name: step_waits
-- The waits of a task: kind, key, name, and when each ends at the latest.
SELECT kind, key, name, due FROM steps WHERE task = $1 AND superseded = 0 AND status = 'waiting' ORDER BY position;

-- name: step_awaits
-- Whether a task waits for a signal of this name.
SELECT 1 FROM steps WHERE task = $1 AND kind = 'signal' AND superseded = 0 AND status = 'waiting' AND name = $2 LIMIT 1;

-- name: step_exposed
-- The last value of each name that a task exposes; a NULL name matches all.
SELECT steps.name, steps.checksum, steps.result
FROM (
    SELECT name, max(ending) AS ending FROM steps
    WHERE task = $1 AND kind = 'expose' AND superseded = 0 AND (CAST($2 AS text) IS NULL OR name = $2)
    GROUP BY name
) AS latest
JOIN steps ON steps.task = $1 AND steps.kind = 'expose' AND steps.superseded = 0
    AND steps.name = latest.name AND steps.ending = latest.ending
ORDER BY steps.name;

-- name: step_again
-- Start another attempt of a step.
UPDATE steps SET
    status = 'running', attempt = $1, started = $2, digest = $3, trace = $4, finished = NULL, due = NULL, progress = NULL
WHERE task = $5 AND kind = 'step' AND key = $6 AND superseded = 0;

-- name: step_finish
-- Store the result of a step.
UPDATE steps SET
    status = 'finished', finished = $1, checksum = $2, validation = $3, result = $4, due = NULL, ending = $5
WHERE task = $6 AND kind = $7 AND key = $8 AND superseded = 0;

-- name: step_fail
-- Record a failed attempt of a step; another follows, or none.
UPDATE steps SET status = $1, due = $2, failures = $3, error = $4, finished = $5, ending = $6
WHERE task = $7 AND kind = $8 AND key = $9 AND superseded = 0;

-- name: step_shift
-- Move the next attempts of a task's steps, and the ends of waits of a certain duration, $1 earlier.
UPDATE steps SET due = CASE WHEN due > $1 THEN due - $1 ELSE 1 END
WHERE task = $2 AND superseded = 0 AND due IS NOT NULL
    AND (status = 'retrying' OR (status = 'waiting' AND kind <> 'until'));

-- name: step_progress
-- Record the progress of a step.
UPDATE steps SET progress = $1 WHERE task = $2 AND kind = 'step' AND key = $3 AND superseded = 0;

-- name: step_interrupt
-- Interrupt the running steps of a task that its worker released. A step that must run once may or may not have run.
UPDATE steps SET status = CASE once WHEN 1 THEN 'unknown' ELSE 'interrupted' END
WHERE task = $1 AND kind = 'step' AND superseded = 0 AND status = 'running';

-- name: step_cancel
-- Cancel the running steps of a task that was stopped. Its waits continue.
UPDATE steps SET
    status = CASE once WHEN 1 THEN 'unknown' ELSE 'cancelled' END,
    finished = CASE once WHEN 1 THEN NULL ELSE CAST($1 AS bigint) END
WHERE task = $2 AND kind = 'step' AND superseded = 0 AND status = 'running';

-- name: step_abandon
-- Cancel the running steps and the waits that the workflow of a completed task abandoned.
UPDATE steps SET
    status = CASE once WHEN 1 THEN 'unknown' ELSE 'cancelled' END,
    finished = CASE once WHEN 1 THEN NULL ELSE CAST($1 AS bigint) END
WHERE task = $2 AND superseded = 0 AND ((kind = 'step' AND status = 'running') OR status = 'waiting');

-- name: step_run_again
-- Queue a step again that a person decided to repeat.
UPDATE steps SET status = 'interrupted' WHERE task = $1 AND kind = 'step' AND key = $2 AND superseded = 0;

-- name: step_supersede
-- Invalidate a step.
UPDATE steps SET
    superseded = $1,
    status = CASE WHEN status IN ('finished', 'failed') THEN status ELSE 'cancelled' END,
    finished = coalesce(finished, $2)
WHERE task = $3 AND kind = $4 AND key = $5 AND superseded = 0;

-- name: step_supersede_one
-- Invalidate a failed step.
UPDATE steps SET superseded = $1 WHERE task = $2 AND key = $3 AND superseded = 0 AND status = 'failed';

-- name: step_running
-- The running steps of a task.
SELECT key FROM steps WHERE task = $1 AND kind = 'step' AND superseded = 0 AND status = 'running' ORDER BY position;

-- name: step_places
-- The steps and approvals of a task that are not superseded, by position.
SELECT kind, key, position, status, ending, seen, child FROM steps WHERE task = $1 AND superseded = 0
UNION ALL
SELECT 'approval', key, position, status, ending, seen, NULL FROM approvals WHERE task = $1 AND superseded = 0
ORDER BY position;

-- name: step_last
-- The last position of a task, the first of a failed step that was superseded to be repeated, and the last ending
-- number.
SELECT coalesce(max(position), 0),
    (SELECT min(position) FROM steps WHERE task = $1 AND superseded > 0 AND status = 'failed'),
    coalesce(max(ending), 0)
FROM (
    SELECT max(position) AS position, max(ending) AS ending FROM steps WHERE task = $1
    UNION ALL
    SELECT max(position), max(ending) FROM approvals WHERE task = $1
) AS positions;

-- name: step_status
-- The status of a step.
SELECT status, failures FROM steps WHERE task = $1 AND kind = 'step' AND key = $2 AND superseded = 0;

-- name: step_recorded
-- One step, for a worker that resumes its task.
SELECT kind, key, position, status, main, attempt, failures, digest, note, child, due, error, checksum, result,
    trace
FROM steps WHERE task = $1 AND kind = $2 AND key = $3 AND superseded = 0;

-- name: step_replay
-- The steps and approvals of a task, for a worker that resumes it.
SELECT kind, key, position, status, main, attempt, failures, digest, note, child, due, error, checksum, result,
    trace
FROM steps WHERE task = $1 AND superseded = 0
ORDER BY position;

-- name: step_list
-- The steps of a task, including superseded ones if $2 is 1.
SELECT key, name, kind, status, position, attempt, failures, once, digest, progress, note, child, due, checksum, result,
    validation, error, started, finished, superseded, trace
FROM steps WHERE task = $1 AND (superseded = 0 OR $2 = 1)
ORDER BY position;

-- name: step_counts
-- The number of steps of each status; a NULL workflow matches all.
SELECT steps.status, count(*) FROM steps JOIN tasks ON tasks.number = steps.task
WHERE steps.kind = 'step' AND steps.superseded = 0 AND (CAST($1 AS text) IS NULL OR tasks.workflow = $1)
GROUP BY steps.status;

-- name: step_archive
-- All steps of a task.
SELECT steps.kind, steps.key, steps.superseded, steps.name, steps.position, steps.status, steps.main, steps.once,
    steps.attempt, steps.failures, steps.digest, steps.progress, steps.note, steps.child, steps.due, steps.error,
    steps.started, steps.finished, steps.checksum, steps.validation, steps.result, steps.seen,
    steps.ending, steps.message, steps.trace
FROM steps JOIN tasks ON tasks.number = steps.task
WHERE tasks.id = $1
ORDER BY steps.position, steps.superseded;

-- name: step_restore
-- Insert a step of an archive.
INSERT INTO steps (
    task, kind, key, superseded, name, position, status, main, once, attempt, failures, digest, progress, note, child,
    due, error, started, finished, checksum, validation, result, seen, ending, message, trace
)
VALUES (
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24,
    $25, $26
);

-- name: step_delete
-- Delete the steps of a task.
DELETE FROM steps WHERE task = (SELECT number FROM tasks WHERE id = $1);

-- name: step_payloads
-- Stored results of steps before a number, newest first, with their checksums.
SELECT steps.id, steps.checksum, steps.result, steps.key, tasks.id
FROM steps JOIN tasks ON tasks.number = steps.task
WHERE steps.id < $1
ORDER BY steps.id DESC
LIMIT $2;
