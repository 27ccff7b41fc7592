-- name: task_known
-- Tasks of these ids, to be compared. Differs: lists are arrays.
SELECT id, workflow, arguments FROM tasks WHERE id = ANY ($1);

-- name: task_held
-- Tasks as those who write for them see them. Differs: lists are arrays.
SELECT number, id, workflow, name, session, parent, status, phase, auto, halting, generation, holder, lease,
    restarts, backoff, restarted, error, losses, max_losses, redo
FROM tasks WHERE number = ANY ($1);

-- name: task_standing
-- The same by their ids. Differs: lists are arrays.
SELECT number, id, workflow, name, session, parent, status, phase, auto, halting, generation, holder, lease,
    restarts, backoff, restarted, error, losses, max_losses, redo
FROM tasks WHERE id = ANY ($1);

-- name: task_held_by
-- What agents hold. Differs: lists are arrays, and no index needs to be named.
SELECT number, id, workflow, name, session, parent, status, phase, auto, halting, generation, holder, lease,
    restarts, backoff, restarted, error, losses, max_losses, redo
FROM tasks WHERE status = 'running' AND holder = ANY ($1);

-- name: task_ready
-- Tasks of these workflows that may be taken, the oldest first, at most $2. Differs: lists are arrays, opened beside each
-- workflow's first ones.
SELECT ready.number, ready.id, ready.workflow, ready.name, ready.session, ready.auto, ready.lease + 1,
    CASE WHEN ready.started IS NULL THEN 1 ELSE 0 END, ready.notes, ready.context, ready.settings, ready.checksum,
    ready.arguments, ready.generation, ready.losses
FROM unnest($1::text[]) AS wanted (workflow)
CROSS JOIN LATERAL (
    SELECT * FROM tasks WHERE tasks.workflow = wanted.workflow AND tasks.due = 0 ORDER BY tasks.number LIMIT $2
) AS ready
ORDER BY ready.number
LIMIT $2;

-- name: task_horizon
-- The time at which the next task is due (wall), the time at which the next lease expires (awake), and the state of the
-- clocks. Differs: no index needs to be named.
SELECT
    (SELECT due FROM tasks WHERE due > 0 ORDER BY due LIMIT 1),
    (SELECT lease_until FROM tasks WHERE status = 'running' ORDER BY lease_until LIMIT 1),
    (SELECT value FROM meta WHERE key = 'task_clock');

-- name: task_waited
-- Tasks whose waiting has an end now, whether what they wait for has come or not. Differs: no index needs to be named.
SELECT id FROM tasks WHERE due > 0 AND due <= $1 AND status = 'waiting';

-- name: task_lapsed
-- Tasks that were held for too long. Differs: no index needs to be named.
SELECT number, id, workflow, name, session, parent, status, phase, auto, halting, generation, holder, lease,
    restarts, backoff, restarted, error, losses, max_losses, redo
FROM tasks WHERE status = 'running' AND lease_until <= $1;

-- name: workflow_signatures
-- The signatures of these workflows that live workers announce. Differs: lists are arrays.
SELECT workflows.workflow, workflows.agent, workflows.signature
FROM workflows JOIN agents ON agents.id = workflows.agent
WHERE workflows.workflow = ANY ($1) AND agents.status IN ('running', 'suspect')
ORDER BY workflows.workflow, workflows.agent;

-- name: workflow_forget
-- The lives of these agents are over. Differs: lists are arrays.
DELETE FROM workflows WHERE agent = ANY ($1);
