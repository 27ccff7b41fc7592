-- name: task_insert
-- A new task.
INSERT INTO tasks (
    id, workflow, name, session, parent, status, auto, due, restarts, backoff, created, updated, context, settings,
    checksum, arguments, max_losses
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17);

-- name: task_running
-- Every task that somebody holds.
SELECT number, id, workflow, name, session, parent, status, phase, auto, halting, generation, holder, lease,
    restarts, backoff, restarted, error, losses, max_losses, redo
FROM tasks WHERE status = 'running';

-- name: task_promote
-- What is due may be taken; what waited in vain looks for itself how it goes on.
UPDATE tasks SET status = 'pending', due = 0, updated = $1 WHERE due > 0 AND due <= $1;

-- name: task_written_later
-- Tasks that wait for a time, and that were written after the present one: the wall clock was set back.
SELECT number, updated FROM tasks WHERE due > 0 AND status = 'pending' AND updated > $1;

-- name: task_shift
-- A task is due earlier by $1.
UPDATE tasks SET due = CASE WHEN due > $1 THEN due - $1 ELSE 1 END, updated = $2 WHERE number = $3;

-- name: task_lease
-- Hand a task to a worker.
UPDATE tasks SET
    status = 'running', holder = $1, lease = lease + 1, lease_until = $2, due = NULL, waits = '[]', error = NULL,
    started = coalesce(started, $3), updated = $3
WHERE number = $4;

-- name: task_renew
-- Hold a task for longer.
UPDATE tasks SET lease_until = $1 WHERE number = $2;

-- name: task_free
-- Nobody holds a task any more.
UPDATE tasks SET
    status = CASE halting WHEN 1 THEN 'halted' ELSE 'pending' END,
    due = CASE halting WHEN 1 THEN NULL ELSE 0 END,
    halting = 0, holder = NULL, lease_until = NULL, updated = $1
WHERE number = $2 AND status = 'running';

-- name: task_lost
-- A worker died or lost its lease while it ran a task.
UPDATE tasks SET losses = losses + 1 WHERE number = $1;

-- name: task_progressed
-- Something of a task was done: workers that it lost before do not count any more.
UPDATE tasks SET losses = 0 WHERE number = $1;

-- name: task_let_go
-- A worker can do nothing for a task at present.
UPDATE tasks SET
    status = $1, due = $2, waits = $3, halting = 0, holder = NULL, lease_until = NULL, updated = $4
WHERE number = $5;

-- name: task_awaited
-- What a task may wait for and has not got yet: decisions, what became of steps, the ends of sub-tasks.
SELECT 'approval', key FROM approvals WHERE task = $1 AND status = 'open' AND superseded = 0
UNION ALL
SELECT 'step', key FROM steps WHERE task = $1 AND kind = 'step' AND superseded = 0 AND status = 'unknown'
UNION ALL
SELECT 'task', id FROM tasks WHERE parent = (SELECT id FROM tasks WHERE number = $1) AND ended IS NULL;

-- name: task_ready_now
-- A waiting task may be taken.
UPDATE tasks SET status = 'pending', due = 0, updated = $1 WHERE number = $2 AND status = 'waiting';

-- name: task_complete
-- A task is done.
UPDATE tasks SET
    status = 'completed', result_sum = $1, result = $2, ended = $3, updated = $3, progress = 100, error = NULL,
    halting = 0, holder = NULL, lease_until = NULL
WHERE number = $4;

-- name: task_fail
-- A task has failed.
UPDATE tasks SET
    status = 'failed', error = $1, ended = $2, updated = $2, due = NULL, halting = 0, holder = NULL, lease_until = NULL
WHERE number = $3;

-- name: task_restart_later
-- A task has failed, and is tried again at $1; unless it is to be halted.
UPDATE tasks SET
    status = CASE halting WHEN 1 THEN 'halted' ELSE 'pending' END,
    due = CASE halting WHEN 1 THEN NULL ELSE CAST($1 AS bigint) END,
    error = $2, updated = $3, restarted = restarted + 1, halting = 0, holder = NULL, lease_until = NULL
WHERE number = $4;

-- name: task_generation
-- Something of a task is made void.
UPDATE tasks SET generation = generation + 1 WHERE number = $1;

-- name: task_phase
-- What a workflow calls the part that a task is in.
UPDATE tasks SET phase = $1, updated = $2 WHERE number = $3;

-- name: task_progress
-- How far a task is.
UPDATE tasks SET progress = $1, note = coalesce(CAST($2 AS text), note), updated = $3 WHERE number = $4;

-- name: task_note
-- What a step of a task is at.
UPDATE tasks SET note = $1, updated = $2 WHERE number = $3;

-- name: task_halting
-- Whether a running task is to be halted before its next step.
UPDATE tasks SET halting = $1, updated = $2 WHERE number = $3;

-- name: task_halt
-- A task that nobody holds is halted.
UPDATE tasks SET status = 'halted', due = NULL, updated = $1 WHERE number = $2;

-- name: task_resume
-- A task goes on.
UPDATE tasks SET status = 'pending', due = 0, ended = NULL, waits = '[]', error = NULL, losses = 0, updated = $1
WHERE number = $2;

-- name: task_stop
-- A task is given up, whoever holds it.
UPDATE tasks SET
    status = 'stopped', due = NULL, halting = 0, holder = NULL, lease_until = NULL, ended = $1, updated = $1
WHERE number = $2;

-- name: task_again
-- A task is done again, or a part of it; its worker loses it.
UPDATE tasks SET
    status = CASE halting WHEN 1 THEN 'halted' ELSE 'pending' END,
    due = CASE halting WHEN 1 THEN NULL ELSE 0 END,
    waits = '[]', halting = 0, holder = NULL, lease_until = NULL, ended = NULL, result = NULL, result_sum = NULL,
    error = NULL, updated = $1
WHERE number = $2;

-- name: task_redo_wait
-- Redos of a task that wait until the steps beside them have ended.
UPDATE tasks SET redo = $1, halting = 0, updated = $2 WHERE number = $3;

-- name: task_redo_apply
-- Something of a task was made void, and no redo waits any more. It is back in the phase that what is not void ends in.
UPDATE tasks SET
    redo = NULL, generation = generation + 1, losses = 0, notes = $1, updated = $2,
    phase = (
        SELECT steps.name FROM steps
        WHERE steps.task = tasks.number AND steps.kind = 'phase' AND steps.superseded = 0
        ORDER BY steps.position DESC LIMIT 1
    ),
    progress = 0, note = NULL
WHERE number = $3;

-- name: task_reset
-- A task is as if it had not begun: none of its restarts is used up.
UPDATE tasks SET restarted = 0 WHERE number = $1;

-- name: task_auto
-- Whether a task passes approvals through.
UPDATE tasks SET auto = $1, updated = $2 WHERE number = $3;

-- name: task_edit
-- What people changed of a task; NULL stays as it is.
UPDATE tasks SET
    name = coalesce(CAST($1 AS text), name), context = coalesce(CAST($2 AS text), context),
    settings = coalesce(CAST($3 AS text), settings), restarts = coalesce(CAST($4 AS bigint), restarts),
    backoff = coalesce(CAST($5 AS bigint), backoff), max_losses = coalesce(CAST($6 AS bigint), max_losses),
    updated = $7
WHERE number = $8;

-- name: task_edit_arguments
-- A person changed the arguments of a task.
UPDATE tasks SET checksum = $1, arguments = $2, updated = $3 WHERE number = $4;

-- name: task_arguments
-- The arguments of a task.
SELECT checksum, arguments FROM tasks WHERE number = $1;

-- name: task_descendants
-- The sub-tasks of a task that have not ended, and theirs.
WITH RECURSIVE family (id) AS (
    SELECT id FROM tasks WHERE parent = $1
    UNION
    SELECT tasks.id FROM family JOIN tasks ON tasks.parent = family.id
)
SELECT tasks.number, tasks.id, tasks.workflow, tasks.name, tasks.session, tasks.parent, tasks.status, tasks.phase,
    tasks.auto, tasks.halting, tasks.generation, tasks.holder, tasks.lease, tasks.restarts, tasks.backoff,
    tasks.restarted, tasks.error, tasks.losses, tasks.max_losses, tasks.redo
FROM family JOIN tasks ON tasks.id = family.id
WHERE tasks.ended IS NULL;

-- name: task_awaited_children
-- The sub-tasks of a task whose ends it has not heard of, in the order in which it started them.
SELECT tasks.number, tasks.id, tasks.workflow, tasks.name, tasks.session, tasks.parent, tasks.status, tasks.phase,
    tasks.auto, tasks.halting, tasks.generation, tasks.holder, tasks.lease, tasks.restarts, tasks.backoff,
    tasks.restarted, tasks.error, tasks.losses, tasks.max_losses, tasks.redo
FROM steps JOIN tasks ON tasks.id = steps.child
WHERE steps.task = $1 AND steps.kind = 'task' AND steps.superseded = 0 AND steps.status = 'running'
ORDER BY steps.position;

-- name: task_get
-- All of one task.
SELECT number, id, name, workflow, status, phase, session, parent, auto, halting, progress, note, holder, waits, due,
    restarts, backoff, restarted, context, settings, checksum, arguments, result_sum, result, error, created,
    started, updated, ended, losses, max_losses, redo
FROM tasks WHERE id = $1;

-- name: task_ending
-- How a task stands, for one who waits for its end.
SELECT status, error, result_sum, result FROM tasks WHERE id = $1;

-- name: task_list
-- Tasks, newest first, before the cursor; a NULL filter takes all. $2 has statuses between commas.
SELECT number, id, name, workflow, status, phase, session, parent, auto, halting, progress, note, holder, waits, due,
    restarts, backoff, restarted, context, settings, checksum, arguments, result_sum, result, error, created,
    started, updated, ended, losses, max_losses, redo
FROM tasks
WHERE number < $1
    AND (CAST($2 AS text) IS NULL OR CAST($2 AS text) LIKE '%,' || status || ',%')
    AND (CAST($3 AS text) IS NULL OR workflow = $3)
    AND (CAST($4 AS text) IS NULL OR session = $4)
    AND (CAST($5 AS text) IS NULL OR parent = $5)
ORDER BY number DESC
LIMIT $6;

-- name: task_list_status
-- The same for one status, of which there may be few among many.
SELECT number, id, name, workflow, status, phase, session, parent, auto, halting, progress, note, holder, waits, due,
    restarts, backoff, restarted, context, settings, checksum, arguments, result_sum, result, error, created,
    started, updated, ended, losses, max_losses, redo
FROM tasks
WHERE status = $2 AND number < $1
    AND (CAST($3 AS text) IS NULL OR workflow = $3)
    AND (CAST($4 AS text) IS NULL OR session = $4)
    AND (CAST($5 AS text) IS NULL OR parent = $5)
ORDER BY number DESC
LIMIT $6;

-- name: task_resumable
-- Tasks that were begun and not completed, that nobody is at work on, and that no person is asked about.
SELECT number, id, name, workflow, status, phase, session, parent, auto, halting, progress, note, holder, waits, due,
    restarts, backoff, restarted, context, settings, checksum, arguments, result_sum, result, error, created,
    started, updated, ended, losses, max_losses, redo
FROM tasks
WHERE number IN (
    SELECT number FROM tasks WHERE status = 'halted'
    UNION ALL SELECT number FROM tasks WHERE status = 'failed'
    UNION ALL SELECT number FROM tasks WHERE status = 'stopped'
    UNION ALL SELECT number FROM tasks WHERE status = 'pending' AND started IS NOT NULL
    UNION ALL SELECT number FROM tasks WHERE status = 'running' AND NOT EXISTS (
        SELECT 1 FROM agents WHERE agents.id = tasks.holder AND agents.status IN ('running', 'suspect')
    )
)
ORDER BY number DESC
LIMIT $1;

-- name: task_counts
-- How many tasks there are, by workflow and status; NULL takes all workflows.
SELECT workflow, status, count(*) FROM tasks
WHERE CAST($1 AS text) IS NULL OR workflow = $1
GROUP BY workflow, status
ORDER BY workflow, status;

-- name: task_ages
-- Since when the oldest task waits for a worker, and how long completed ones took.
SELECT
    (SELECT min(created) FROM tasks WHERE due = 0 AND (CAST($1 AS text) IS NULL OR workflow = $1)),
    (SELECT CAST(avg(ended - started) AS bigint) FROM tasks
        WHERE status = 'completed' AND (CAST($1 AS text) IS NULL OR workflow = $1));

-- name: task_after
-- Tasks after a number, with about their size.
SELECT number, id, (
    SELECT 1000 + length(tasks.arguments) + length(coalesce(tasks.result, ''))
        + coalesce(sum(300 + length(coalesce(steps.result, ''))), 0)
    FROM steps WHERE steps.task = tasks.number
)
FROM tasks WHERE number > $1 ORDER BY number LIMIT $2;

-- name: task_of_session
-- The tasks of a session: id, when it ended and was last changed, about its size.
SELECT id, ended, updated, (
    SELECT 1000 + length(tasks.arguments) + length(coalesce(tasks.result, ''))
        + coalesce(sum(300 + length(coalesce(steps.result, ''))), 0)
    FROM steps WHERE steps.task = tasks.number
)
FROM tasks WHERE session = $1 ORDER BY number;

-- name: task_expendable
-- Tasks that are nobody's sub-task and ended before $3, after a cursor ($1, $2): when, and which.
SELECT ended, number, id FROM tasks
WHERE ended IS NOT NULL AND parent IS NULL AND ended <= $3 AND (ended > $1 OR (ended = $1 AND number > $2))
ORDER BY ended, number
LIMIT $4;

-- name: task_lineage
-- A task with all its sub-tasks, and theirs: id, when it ended and was last changed, about its size.
WITH RECURSIVE family (id) AS (
    SELECT id FROM tasks WHERE id = $1
    UNION
    SELECT tasks.id FROM family JOIN tasks ON tasks.parent = family.id
)
SELECT tasks.id, tasks.ended, tasks.updated, (
    SELECT 1000 + length(tasks.arguments) + length(coalesce(tasks.result, ''))
        + coalesce(sum(300 + length(coalesce(steps.result, ''))), 0)
    FROM steps WHERE steps.task = tasks.number
)
FROM family JOIN tasks ON tasks.id = family.id;

-- name: task_mark
-- When a task ended, and was last changed.
SELECT ended, updated FROM tasks WHERE id = $1;

-- name: task_archive
-- All of a task that outlives a boot.
SELECT id, workflow, name, session, parent, status, phase, auto, progress, note, generation, lease, restarts,
    backoff, restarted, error, created, started, updated, ended, notes, context, settings, waits, checksum,
    arguments, result_sum, result, losses, max_losses, redo
FROM tasks WHERE id = $1;

-- name: task_restore
-- A task from an archive.
INSERT INTO tasks (
    id, workflow, name, session, parent, status, phase, auto, progress, note, generation, lease, restarts,
    backoff, restarted, error, created, started, updated, ended, notes, context, settings, waits, checksum,
    arguments, result_sum, result, losses, max_losses
)
VALUES (
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24,
    $25, $26, $27, $28, $29, $30
)
RETURNING number;

-- name: task_same
-- Whether a task is the one of an archive.
SELECT 1 FROM tasks WHERE id = $1 AND workflow = $2 AND created = $3;

-- name: task_delete
-- A task goes for good.
DELETE FROM tasks WHERE id = $1;

-- name: task_open_of_session
-- The tasks of a session that have not ended, and who has them.
SELECT id, status, holder FROM tasks WHERE session = $1 AND ended IS NULL ORDER BY number;

-- name: task_payloads
-- Arguments and results of tasks before a number, newest first, each with its checksum.
SELECT number, checksum, arguments, 'the arguments', id FROM tasks
WHERE number IN (SELECT number FROM tasks WHERE number < $1 ORDER BY number DESC LIMIT $2)
UNION ALL
SELECT number, result_sum, result, 'the result', id FROM tasks
WHERE number IN (SELECT number FROM tasks WHERE number < $1 ORDER BY number DESC LIMIT $2) AND result IS NOT NULL
ORDER BY 1 DESC;

-- name: workflow_announce
-- The signature of a workflow that a worker has.
INSERT INTO workflows (workflow, agent, signature) VALUES ($1, $2, $3)
ON CONFLICT (workflow, agent) DO UPDATE SET signature = excluded.signature;

-- name: workflow_withdraw
-- A worker does not run a workflow any more.
DELETE FROM workflows WHERE workflow = $1 AND agent = $2;
