-- name: item_ready
-- The work items that agents may take, most urgent first, then oldest, each with its last lease; a NULL workflow matches all.
SELECT lease, number, id, name, workflow, status, phase, session, parent, auto, halting, progress, note, holder, waits, due,
    restarts, backoff, restarted, context, settings, checksum, arguments, result_sum, result, error, created,
    started, updated, ended, losses, max_losses, redo, manual, priority, trace, on_failed
FROM tasks WHERE number IN (
    SELECT number FROM tasks /* sqlite: INDEXED BY tasks_takable */
    WHERE due = 0 AND manual = 1 AND (CAST($1 AS text) IS NULL OR workflow = $1)
    ORDER BY priority DESC, number
    LIMIT $2
)
ORDER BY priority DESC, number;

-- name: item_due
-- When a task is due: 0 if it is ready.
SELECT due FROM tasks WHERE number = $1;

-- name: item_extend_held
-- Extend the leases of all work items that an agent holds. Few tasks are held, therefore the index is named.
UPDATE tasks /* sqlite: INDEXED BY tasks_leased */ SET lease_until = $1
WHERE status = 'running' AND holder = $2 AND lease_until < $1 AND manual = 1;

-- name: item_held
-- The work items that an agent holds, with the numbers of their leases.
SELECT id, lease FROM tasks /* sqlite: INDEXED BY tasks_leased */
WHERE status = 'running' AND holder = $1 AND manual = 1
ORDER BY number;

-- name: item_result
-- The checksum and the result of a work item that is finished.
SELECT result_sum, result FROM tasks WHERE number = $1;

-- name: item_takers
-- Whether an agent has taken a work item, as far as the audit log goes back.
SELECT 1 FROM events
WHERE subject_kind = 'task' AND subject = $1 AND kind = 'task_running' AND actor = $2
LIMIT 1;

-- name: item_finisher
-- The agent that finished a work item last.
SELECT actor FROM events
WHERE subject_kind = 'task' AND subject = $1 AND kind = 'task_completed'
ORDER BY id DESC
LIMIT 1;

-- name: item_priority
-- Set the priority of a work item.
UPDATE tasks SET priority = $1, updated = $2 WHERE number = $3;

-- name: item_ready_tasks
-- The tasks that can be taken now, by an agent or a worker, most urgent first, then oldest; a NULL filter matches all. A task
-- that is due, or whose lease has expired, can be taken: the next claim makes it ready.
SELECT number, id, name, workflow, status, phase, session, parent, auto, halting, progress, note, holder, waits, due,
    restarts, backoff, restarted, context, settings, checksum, arguments, result_sum, result, error, created,
    started, updated, ended, losses, max_losses, redo, manual, priority, trace, on_failed
FROM tasks
WHERE number IN (
    SELECT number FROM tasks WHERE due = 0
    UNION ALL SELECT number FROM tasks WHERE due > 0 AND due <= $1 AND status = 'pending'
    UNION ALL SELECT number FROM tasks
    WHERE status = 'running' AND lease_until <= $2 AND halting = 0 AND losses + 1 < max_losses
)
    AND (CAST($3 AS text) IS NULL OR workflow = $3)
    AND (CAST($4 AS bigint) IS NULL OR manual = $4)
ORDER BY priority DESC, number
LIMIT $5;
