-- name: task_known
-- Tasks of these ids, to be compared. Differs: lists by json_each.
SELECT tasks.id, workflow, arguments FROM json_each($1) AS wanted CROSS JOIN tasks ON tasks.id = wanted.value;

-- name: task_held
-- Tasks as those who write for them see them. Differs: lists by json_each.
SELECT tasks.number, tasks.id, tasks.workflow, tasks.name, tasks.session, tasks.parent, tasks.status, tasks.phase,
    tasks.auto, tasks.halting, tasks.generation, tasks.holder, tasks.lease, tasks.restarts, tasks.backoff,
    tasks.restarted, tasks.error
FROM json_each($1) AS wanted CROSS JOIN tasks ON tasks.number = wanted.value;

-- name: task_standing
-- The same by their ids. Differs: lists by json_each.
SELECT tasks.number, tasks.id, tasks.workflow, tasks.name, tasks.session, tasks.parent, tasks.status, tasks.phase,
    tasks.auto, tasks.halting, tasks.generation, tasks.holder, tasks.lease, tasks.restarts, tasks.backoff,
    tasks.restarted, tasks.error
FROM json_each($1) AS wanted CROSS JOIN tasks ON tasks.id = wanted.value;

-- name: task_held_by
-- What agents hold. Differs: lists by json_each; the index is named because nothing tells SQLite that few are held.
SELECT number, id, workflow, name, session, parent, status, phase, auto, halting, generation, holder, lease,
    restarts, backoff, restarted, error
FROM tasks INDEXED BY tasks_leased
WHERE status = 'running' AND holder IN (SELECT value FROM json_each($1));

-- name: task_ready
-- Tasks of these workflows that may be taken, the oldest first, at most $2. Differs: no LATERAL here, and no locks needed
-- inside BEGIN IMMEDIATE.
SELECT ready.number, ready.id, ready.workflow, ready.name, ready.session, ready.auto, ready.lease + 1,
    CASE WHEN ready.started IS NULL THEN 1 ELSE 0 END, ready.notes, ready.context, ready.settings, ready.checksum,
    ready.arguments
FROM json_each($1) AS wanted
JOIN tasks AS ready ON ready.number IN (
    SELECT number FROM tasks WHERE workflow = wanted.value AND due = 0 ORDER BY number LIMIT $2
)
ORDER BY ready.number
LIMIT $2;
