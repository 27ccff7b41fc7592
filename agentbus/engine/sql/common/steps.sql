-- name: step_unsettled
-- Steps of which only a person can say what became, of tasks that nobody is at.
SELECT tasks.id, steps.key, tasks.updated
FROM tasks JOIN steps ON steps.task = tasks.number
WHERE (tasks.status = 'waiting' OR tasks.status = 'pending') AND tasks.waits LIKE '%"step:%'
    AND steps.kind = 'step' AND steps.superseded = 0 AND steps.status = 'unknown'
ORDER BY tasks.number, steps.position
LIMIT $1;

-- name: step_insert
-- Something that a task comes to: a step that is being executed, a sub-task, or what is done as soon as it is recorded.
INSERT INTO steps (
    task, kind, key, name, position, status, main, once, digest, note, child, started, finished, checksum, result,
    seen, ending
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17);

-- name: step_again
-- A step is being executed once more.
UPDATE steps SET
    status = 'running', attempt = $1, started = $2, digest = $3, finished = NULL, due = NULL, progress = NULL
WHERE task = $4 AND kind = 'step' AND key = $5 AND superseded = 0;

-- name: step_finish
-- A step has a result.
UPDATE steps SET
    status = 'finished', finished = $1, checksum = $2, validation = $3, result = $4, due = NULL, ending = $5
WHERE task = $6 AND kind = $7 AND key = $8 AND superseded = 0;

-- name: step_fail
-- An attempt of a step failed; there is another one, or none.
UPDATE steps SET status = $1, due = $2, failures = $3, error = $4, finished = $5, ending = $6
WHERE task = $7 AND kind = $8 AND key = $9 AND superseded = 0;

-- name: step_shift
-- The next attempts of a task's steps are due earlier by $1.
UPDATE steps SET due = CASE WHEN due > $1 THEN due - $1 ELSE 1 END
WHERE task = $2 AND superseded = 0 AND status = 'retrying';

-- name: step_progress
-- How far a step is.
UPDATE steps SET progress = $1 WHERE task = $2 AND kind = 'step' AND key = $3 AND superseded = 0;

-- name: step_interrupt
-- The steps that a worker was at when it let go of a task. What must run only once may have, or may not.
UPDATE steps SET status = CASE once WHEN 1 THEN 'unknown' ELSE 'interrupted' END
WHERE task = $1 AND kind = 'step' AND superseded = 0 AND status = 'running';

-- name: step_cancel
-- The steps that a worker was at when its task was stopped, or that its workflow gave up before it ended.
UPDATE steps SET
    status = CASE once WHEN 1 THEN 'unknown' ELSE 'cancelled' END,
    finished = CASE once WHEN 1 THEN NULL ELSE CAST($1 AS bigint) END
WHERE task = $2 AND kind = 'step' AND superseded = 0 AND status = 'running';

-- name: step_run_again
-- A person decided that a step is to be run again.
UPDATE steps SET status = 'interrupted' WHERE task = $1 AND kind = 'step' AND key = $2 AND superseded = 0;

-- name: step_supersede
-- A step is void.
UPDATE steps SET
    superseded = $1,
    status = CASE WHEN status IN ('finished', 'failed') THEN status ELSE 'cancelled' END,
    finished = coalesce(finished, $2)
WHERE task = $3 AND kind = $4 AND key = $5 AND superseded = 0;

-- name: step_supersede_one
-- A step that failed is void.
UPDATE steps SET superseded = $1 WHERE task = $2 AND key = $3 AND superseded = 0 AND status = 'failed';

-- name: step_running
-- The steps of a task that are being executed.
SELECT key FROM steps WHERE task = $1 AND kind = 'step' AND superseded = 0 AND status = 'running' ORDER BY position;

-- name: step_places
-- The steps and approvals of a task that count, in their order.
SELECT kind, key, position, status, ending, seen, child FROM steps WHERE task = $1 AND superseded = 0
UNION ALL
SELECT 'approval', key, position, status, ending, seen, NULL FROM approvals WHERE task = $1 AND superseded = 0
ORDER BY position;

-- name: step_last
-- The last position that was given out in a task, the first of a step that failed and was made void to be tried again, and
-- the last number of an ending.
SELECT coalesce(max(position), 0),
    (SELECT min(position) FROM steps WHERE task = $1 AND superseded > 0 AND status = 'failed'),
    coalesce(max(ending), 0)
FROM (
    SELECT max(position) AS position, max(ending) AS ending FROM steps WHERE task = $1
    UNION ALL
    SELECT max(position), max(ending) FROM approvals WHERE task = $1
) AS positions;

-- name: step_status
-- How a step stands.
SELECT status, failures FROM steps WHERE task = $1 AND kind = 'step' AND key = $2 AND superseded = 0;

-- name: step_recorded
-- One step, for a worker that goes on with its task.
SELECT kind, key, position, status, main, attempt, failures, digest, note, child, due, error, checksum, result
FROM steps WHERE task = $1 AND kind = $2 AND key = $3 AND superseded = 0;

-- name: step_replay
-- All that counts of a task, for a worker that goes on with it.
SELECT kind, key, position, status, main, attempt, failures, digest, note, child, due, error, checksum, result
FROM steps WHERE task = $1 AND superseded = 0
ORDER BY position;

-- name: step_list
-- The steps of a task; with those that are void, if $2 is 1.
SELECT key, name, kind, status, position, attempt, failures, once, digest, progress, note, child, due, checksum, result,
    validation, error, started, finished, superseded
FROM steps WHERE task = $1 AND (superseded = 0 OR $2 = 1)
ORDER BY position;

-- name: step_counts
-- How many steps there are, by status; NULL takes all workflows.
SELECT steps.status, count(*) FROM steps JOIN tasks ON tasks.number = steps.task
WHERE steps.kind = 'step' AND steps.superseded = 0 AND (CAST($1 AS text) IS NULL OR tasks.workflow = $1)
GROUP BY steps.status;

-- name: step_archive
-- All steps of a task.
SELECT steps.kind, steps.key, steps.superseded, steps.name, steps.position, steps.status, steps.main, steps.once,
    steps.attempt, steps.failures, steps.digest, steps.progress, steps.note, steps.child, steps.due, steps.error,
    steps.started, steps.finished, steps.checksum, steps.validation, steps.result, steps.seen,
    steps.ending
FROM steps JOIN tasks ON tasks.number = steps.task
WHERE tasks.id = $1
ORDER BY steps.position, steps.superseded;

-- name: step_restore
-- A step from an archive.
INSERT INTO steps (
    task, kind, key, superseded, name, position, status, main, once, attempt, failures, digest, progress, note, child,
    due, error, started, finished, checksum, validation, result, seen, ending
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24);

-- name: step_delete
-- A task goes, and its steps with it.
DELETE FROM steps WHERE task = (SELECT number FROM tasks WHERE id = $1);

-- name: step_payloads
-- Steps before a number, newest first, each with the result that it has and its checksum.
SELECT steps.id, steps.checksum, steps.result, steps.key, tasks.id
FROM steps JOIN tasks ON tasks.number = steps.task
WHERE steps.id < $1
ORDER BY steps.id DESC
LIMIT $2;
