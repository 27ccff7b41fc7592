-- name: task_known
-- Tasks of these ids, to be compared. Differs: lists by json_each.
SELECT tasks.id, workflow, arguments FROM json_each($1) AS wanted CROSS JOIN tasks ON tasks.id = wanted.value;

-- name: task_held
-- Tasks as those who write for them see them. Differs: lists by json_each.
SELECT tasks.number, tasks.id, tasks.workflow, tasks.name, tasks.session, tasks.parent, tasks.status, tasks.phase,
    tasks.auto, tasks.halting, tasks.generation, tasks.holder, tasks.lease, tasks.restarts, tasks.backoff,
    tasks.restarted, tasks.error, tasks.losses, tasks.max_losses, tasks.redo
FROM json_each($1) AS wanted CROSS JOIN tasks ON tasks.number = wanted.value;

-- name: task_standing
-- The same by their ids. Differs: lists by json_each.
SELECT tasks.number, tasks.id, tasks.workflow, tasks.name, tasks.session, tasks.parent, tasks.status, tasks.phase,
    tasks.auto, tasks.halting, tasks.generation, tasks.holder, tasks.lease, tasks.restarts, tasks.backoff,
    tasks.restarted, tasks.error, tasks.losses, tasks.max_losses, tasks.redo
FROM json_each($1) AS wanted CROSS JOIN tasks ON tasks.id = wanted.value;

-- name: task_held_by
-- What agents hold. Differs: lists by json_each; the index is named because nothing tells SQLite that few are held.
SELECT number, id, workflow, name, session, parent, status, phase, auto, halting, generation, holder, lease,
    restarts, backoff, restarted, error, losses, max_losses, redo
FROM tasks INDEXED BY tasks_leased
WHERE status = 'running' AND holder IN (SELECT value FROM json_each($1));

-- name: task_ready
-- Tasks of these workflows that may be taken, the oldest first, at most $2. Differs: no LATERAL here, and no locks needed
-- inside BEGIN IMMEDIATE.
SELECT ready.number, ready.id, ready.workflow, ready.name, ready.session, ready.auto, ready.lease + 1,
    CASE WHEN ready.started IS NULL THEN 1 ELSE 0 END, ready.notes, ready.context, ready.settings, ready.checksum,
    ready.arguments, ready.generation, ready.losses
FROM json_each($1) AS wanted
JOIN tasks AS ready ON ready.number IN (
    SELECT number FROM tasks WHERE workflow = wanted.value AND due = 0 ORDER BY number LIMIT $2
)
ORDER BY ready.number
LIMIT $2;

-- name: task_horizon
-- The time at which the next task is due (wall), the time at which the next lease expires (awake), and the state of the
-- clocks. Differs: the index is named because nothing tells SQLite that few are held.
SELECT
    (SELECT due FROM tasks WHERE due > 0 ORDER BY due LIMIT 1),
    (SELECT lease_until FROM tasks INDEXED BY tasks_leased WHERE status = 'running' ORDER BY lease_until LIMIT 1),
    (SELECT value FROM meta WHERE key = 'task_clock');

-- name: task_waited
-- Tasks whose waiting has an end now, whether what they wait for has come or not. Differs: the index is named
-- because nothing tells SQLite that few are due.
SELECT id FROM tasks INDEXED BY tasks_due WHERE due > 0 AND due <= $1 AND status = 'waiting';

-- name: task_lapsed
-- Tasks that were held for too long. Differs: the index is named because nothing tells SQLite that few are held.
SELECT number, id, workflow, name, session, parent, status, phase, auto, halting, generation, holder, lease,
    restarts, backoff, restarted, error, losses, max_losses, redo
FROM tasks INDEXED BY tasks_leased WHERE status = 'running' AND lease_until <= $1;

-- name: workflow_signatures
-- The signatures of these workflows that live workers announce. Differs: lists by json_each.
SELECT workflows.workflow, workflows.agent, workflows.signature
FROM json_each($1) AS wanted
CROSS JOIN workflows ON workflows.workflow = wanted.value
JOIN agents ON agents.id = workflows.agent
WHERE agents.status IN ('running', 'suspect')
ORDER BY workflows.workflow, workflows.agent;

-- name: workflow_forget
-- The lives of these agents are over. Differs: lists by json_each.
DELETE FROM workflows WHERE agent IN (SELECT value FROM json_each($1));
