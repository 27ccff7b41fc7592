-- name: task_insert
-- Insert a task.
INSERT INTO tasks (
    id, workflow, name, session, parent, status, auto, due, restarts, backoff, created, updated, context, settings,
    checksum, arguments, max_losses, manual, priority, on_failed, not_before, trace
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22);

-- name: task_running
-- All tasks that a worker holds.
SELECT /* columns: held_task */
FROM tasks WHERE status = 'running';

-- name: task_promote
-- Make due tasks ready. One that has waited too long decides itself how to continue.
UPDATE tasks SET status = 'pending', due = 0, updated = $1 WHERE due > 0 AND due <= $1;

-- name: task_written_later
-- Tasks that wait for a time and were written after the current time: the wall clock was set back.
SELECT number, updated FROM tasks WHERE due > 0 AND status = 'pending' AND updated > $1;

-- name: task_asleep_later
-- Waiting tasks with a wait of a certain duration, written after the current time: the wall clock was set back.
SELECT number, id FROM tasks
WHERE due > 0 AND status = 'waiting' AND updated > $1 AND EXISTS (
    SELECT 1 FROM steps
    WHERE steps.task = tasks.number AND steps.superseded = 0 AND steps.status = 'waiting' AND steps.kind <> 'until'
);

-- name: task_shift
-- Move the due time of a task $1 earlier.
UPDATE tasks SET due = CASE WHEN due > $1 THEN due - $1 ELSE 1 END, updated = $2 WHERE number = $3;

-- name: task_lease
-- Lease a task to a worker.
UPDATE tasks SET
    status = 'running', holder = $1, lease = lease + 1, lease_until = $2, due = NULL, waits = '[]', error = NULL,
    started = coalesce(started, $3), updated = $3
WHERE number = $4;

-- name: task_renew
-- Extend the lease of a task.
UPDATE tasks SET lease_until = $1 WHERE number = $2;

-- name: task_free
-- Release a task.
UPDATE tasks SET
    status = CASE halting WHEN 1 THEN 'halted' ELSE 'pending' END,
    due = CASE halting WHEN 1 THEN NULL ELSE 0 END,
    halting = 0, holder = NULL, lease_until = NULL, updated = $1
WHERE number = $2 AND status = 'running';

-- name: task_lost
-- Count a worker that died or lost its lease while it ran a task.
UPDATE tasks SET losses = losses + 1 WHERE number = $1;

-- name: task_progressed
-- Reset the count of lost workers: the task made progress.
UPDATE tasks SET losses = 0 WHERE number = $1;

-- name: task_let_go
-- Release a task that waits.
UPDATE tasks SET
    status = $1, due = $2, waits = $3, halting = 0, holder = NULL, lease_until = NULL, updated = $4
WHERE number = $5;

-- name: task_awaited
-- What a task waits for: decisions, outcomes of steps, the ends of sub-tasks, times, signals and messages that have not
-- arrived.
SELECT 'approval', key FROM approvals WHERE task = $1 AND status = 'open' AND superseded = 0
UNION ALL
SELECT 'step', key FROM steps WHERE task = $1 AND kind = 'step' AND superseded = 0 AND status = 'unknown'
UNION ALL
SELECT 'task', id FROM tasks WHERE parent = (SELECT id FROM tasks WHERE number = $1) AND ended IS NULL
UNION ALL
SELECT kind, key FROM steps
WHERE task = $1 AND superseded = 0 AND status = 'waiting'
    AND (kind <> 'signal' OR NOT EXISTS (
        SELECT 1 FROM signals
        WHERE signals.task = steps.task AND signals.name = steps.name AND signals.position IS NULL
    ))
    AND (kind <> 'receive' OR NOT EXISTS (
        SELECT 1 FROM messages
        WHERE status = 'queued' AND mailbox = (
            SELECT mailboxes.id FROM tasks JOIN mailboxes ON mailboxes.kind = 'task' AND mailboxes.name = tasks.id
            WHERE tasks.number = $1
        )
    ));

-- name: task_ready_now
-- Make a waiting task ready.
UPDATE tasks SET status = 'pending', due = 0, updated = $1 WHERE number = $2 AND status = 'waiting';

-- name: task_recipients
-- Tasks of these ids as senders of messages need them, each with its mailbox, if it has one.
SELECT tasks.id, tasks.number, tasks.status, tasks.holder, tasks.manual,
    (SELECT mailboxes.id FROM mailboxes WHERE kind = 'task' AND mailboxes.name = tasks.id AND owner = '')
FROM /* rows: tasks.id $1 */;

-- name: task_mail_arrived
-- Make a task ready that waits for a message; returns its id if it did.
UPDATE tasks SET status = 'pending', due = 0, updated = $1
WHERE number = $2 AND status = 'waiting' AND EXISTS (
    SELECT 1 FROM steps
    WHERE steps.task = tasks.number AND steps.superseded = 0 AND steps.status = 'waiting' AND steps.kind = 'receive'
)
RETURNING id;

-- name: task_complete
-- Complete a task.
UPDATE tasks SET
    status = 'completed', result_sum = $1, result = $2, ended = $3, updated = $3, progress = 100, error = NULL,
    halting = 0, holder = NULL, lease_until = NULL
WHERE number = $4;

-- name: task_fail
-- Fail a task.
UPDATE tasks SET
    status = 'failed', error = $1, ended = $2, updated = $2, due = NULL, halting = 0, holder = NULL, lease_until = NULL
WHERE number = $3;

-- name: task_restart_later
-- Restart a failed task at $1, unless it is to be halted.
UPDATE tasks SET
    status = CASE halting WHEN 1 THEN 'halted' ELSE 'pending' END,
    due = CASE halting WHEN 1 THEN NULL ELSE CAST($1 AS bigint) END,
    error = $2, updated = $3, restarted = restarted + 1, halting = 0, holder = NULL, lease_until = NULL
WHERE number = $4;

-- name: task_generation
-- Start a new generation of a task: part of it was invalidated.
UPDATE tasks SET generation = generation + 1 WHERE number = $1;

-- name: task_phase
-- Set the phase of a task.
UPDATE tasks SET phase = $1, updated = $2 WHERE number = $3;

-- name: task_progress
-- Record the progress of a task.
UPDATE tasks SET progress = $1, note = coalesce(CAST($2 AS text), note), updated = $3 WHERE number = $4;

-- name: task_note
-- Record what a step of a task does.
UPDATE tasks SET note = $1, updated = $2 WHERE number = $3;

-- name: task_halting
-- Set whether a running task is halted before its next step.
UPDATE tasks SET halting = $1, updated = $2 WHERE number = $3;

-- name: task_halt
-- Halt a task that no worker holds.
UPDATE tasks SET status = 'halted', due = NULL, updated = $1 WHERE number = $2;

-- name: task_resume
-- Resume a task.
UPDATE tasks SET status = 'pending', due = 0, ended = NULL, waits = '[]', error = NULL, losses = 0, updated = $1
WHERE number = $2;

-- name: task_stop
-- Stop a task, including one that a worker holds.
UPDATE tasks SET
    status = 'stopped', due = NULL, halting = 0, holder = NULL, lease_until = NULL, ended = $1, updated = $1
WHERE number = $2;

-- name: task_again
-- Run a task again, or a part of it; its worker loses it.
UPDATE tasks SET
    status = CASE halting WHEN 1 THEN 'halted' ELSE 'pending' END,
    due = CASE halting WHEN 1 THEN NULL ELSE 0 END,
    waits = '[]', halting = 0, holder = NULL, lease_until = NULL, ended = NULL, result = NULL, result_sum = NULL,
    error = NULL, updated = $1
WHERE number = $2;

-- name: task_redo_wait
-- Store the redos of a task that wait until concurrent steps have ended.
UPDATE tasks SET redo = $1, halting = 0, updated = $2 WHERE number = $3;

-- name: task_redo_apply
-- Invalidate part of a task and clear its waiting redos. Its phase is that of the last remaining step.
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
-- Reset a task to its start, with all its restarts.
UPDATE tasks SET restarted = 0 WHERE number = $1;

-- name: task_auto
-- Set whether a task approves automatically.
UPDATE tasks SET auto = $1, updated = $2 WHERE number = $3;

-- name: task_edit
-- Change a task as a person asked; NULL keeps the stored value.
UPDATE tasks SET
    name = coalesce(CAST($1 AS text), name), context = coalesce(CAST($2 AS text), context),
    settings = coalesce(CAST($3 AS text), settings), restarts = coalesce(CAST($4 AS bigint), restarts),
    backoff = coalesce(CAST($5 AS bigint), backoff), max_losses = coalesce(CAST($6 AS bigint), max_losses),
    updated = $7
WHERE number = $8;

-- name: task_edit_arguments
-- Change the arguments of a task.
UPDATE tasks SET checksum = $1, arguments = $2, updated = $3 WHERE number = $4;

-- name: task_arguments
-- The arguments of a task.
SELECT checksum, arguments FROM tasks WHERE number = $1;

-- name: task_descendants
-- The unfinished sub-tasks of a task, recursively.
WITH RECURSIVE family (id) AS (
    SELECT id FROM tasks WHERE parent = $1
    UNION
    SELECT tasks.id FROM family JOIN tasks ON tasks.parent = family.id
)
SELECT /* columns: held_task tasks */
FROM family JOIN tasks ON tasks.id = family.id
WHERE tasks.ended IS NULL;

-- name: task_awaited_children
-- The sub-tasks of a task whose end it has not recorded, in the order of their start.
SELECT /* columns: held_task tasks */
FROM steps JOIN tasks ON tasks.id = steps.child
WHERE steps.task = $1 AND steps.kind = 'task' AND steps.superseded = 0 AND steps.status = 'running'
ORDER BY steps.position;

-- name: task_get
-- One task.
SELECT number, id, name, workflow, status, phase, session, parent, auto, halting, progress, note, holder, waits, due,
    restarts, backoff, restarted, context, settings, checksum, arguments, result_sum, result, error, created,
    started, updated, ended, losses, max_losses, redo, manual, priority, trace, on_failed
FROM tasks WHERE id = $1;

-- name: task_ending
-- The status of a task, for a caller that waits for its end.
SELECT status, error, result_sum, result FROM tasks WHERE id = $1;

-- name: task_list
-- Tasks before the cursor, newest first; a NULL filter matches all. $2 is a list of statuses between commas.
SELECT number, id, name, workflow, status, phase, session, parent, auto, halting, progress, note, holder, waits, due,
    restarts, backoff, restarted, context, settings, checksum, arguments, result_sum, result, error, created,
    started, updated, ended, losses, max_losses, redo, manual, priority, trace, on_failed
FROM tasks
WHERE number < $1
    AND (CAST($2 AS text) IS NULL OR CAST($2 AS text) LIKE '%,' || status || ',%')
    AND (CAST($3 AS text) IS NULL OR workflow = $3)
    AND (CAST($4 AS text) IS NULL OR session = $4)
    AND (CAST($5 AS text) IS NULL OR parent = $5)
ORDER BY number DESC
LIMIT $6;

-- name: task_list_status
-- Tasks of one status before the cursor: there may be few among many.
SELECT number, id, name, workflow, status, phase, session, parent, auto, halting, progress, note, holder, waits, due,
    restarts, backoff, restarted, context, settings, checksum, arguments, result_sum, result, error, created,
    started, updated, ended, losses, max_losses, redo, manual, priority, trace, on_failed
FROM tasks
WHERE status = $2 AND number < $1
    AND (CAST($3 AS text) IS NULL OR workflow = $3)
    AND (CAST($4 AS text) IS NULL OR session = $4)
    AND (CAST($5 AS text) IS NULL OR parent = $5)
ORDER BY number DESC
LIMIT $6;

-- name: task_resumable
-- Tasks that started, did not complete, and are not held by a worker or waiting for a person.
SELECT number, id, name, workflow, status, phase, session, parent, auto, halting, progress, note, holder, waits, due,
    restarts, backoff, restarted, context, settings, checksum, arguments, result_sum, result, error, created,
    started, updated, ended, losses, max_losses, redo, manual, priority, trace, on_failed
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
-- The number of tasks by workflow and status; a NULL workflow matches all.
SELECT workflow, status, count(*) FROM tasks
WHERE CAST($1 AS text) IS NULL OR workflow = $1
GROUP BY workflow, status
ORDER BY workflow, status;

-- name: task_ages
-- How long the oldest task has waited for a worker, and how long completed tasks took.
SELECT
    (SELECT min(created) FROM tasks WHERE due = 0 AND manual = 0 AND (CAST($1 AS text) IS NULL OR workflow = $1)),
    (SELECT CAST(avg(ended - started) AS bigint) FROM tasks
        WHERE status = 'completed' AND (CAST($1 AS text) IS NULL OR workflow = $1));

-- name: task_after
-- Tasks after a number, with an estimate of their size.
SELECT number, id, (
    SELECT 1000 + length(tasks.arguments) + length(coalesce(tasks.result, ''))
        + coalesce(sum(300 + length(coalesce(steps.result, ''))), 0)
    FROM steps WHERE steps.task = tasks.number
)
FROM tasks WHERE number > $1 ORDER BY number LIMIT $2;

-- name: task_of_session
-- The tasks of a session: id, end, last change, and an estimate of the size.
SELECT id, ended, updated, (
    SELECT 1000 + length(tasks.arguments) + length(coalesce(tasks.result, ''))
        + coalesce(sum(300 + length(coalesce(steps.result, ''))), 0)
    FROM steps WHERE steps.task = tasks.number
)
FROM tasks WHERE session = $1 ORDER BY number;

-- name: task_expendable
-- Top-level tasks after a cursor ($1, $2) that ended before $3, with their end.
SELECT ended, number, id FROM tasks
WHERE ended IS NOT NULL AND parent IS NULL AND ended <= $3 AND (ended > $1 OR (ended = $1 AND number > $2))
ORDER BY ended, number
LIMIT $4;

-- name: task_lineage
-- A task with its sub-tasks, recursively: id, end, last change, and an estimate of the size.
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
-- The end and the last change of a task.
SELECT ended, updated FROM tasks WHERE id = $1;

-- name: task_archive
-- One task for an archive.
SELECT id, workflow, name, session, parent, status, phase, auto, progress, note, generation, lease, restarts,
    backoff, restarted, error, created, started, updated, ended, notes, context, settings, waits, checksum,
    arguments, result_sum, result, losses, max_losses, manual, priority, on_failed, not_before, trace,
    redo
FROM tasks WHERE id = $1;

-- name: task_restore
-- Insert a task of an archive.
INSERT INTO tasks (
    id, workflow, name, session, parent, status, phase, auto, progress, note, generation, lease, restarts,
    backoff, restarted, error, created, started, updated, ended, notes, context, settings, waits, checksum,
    arguments, result_sum, result, losses, max_losses, manual, priority, on_failed, not_before, trace
)
VALUES (
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24,
    $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35
)
RETURNING number;

-- name: task_same
-- Whether a task is the one in an archive.
SELECT 1 FROM tasks WHERE id = $1 AND workflow = $2 AND created = $3;

-- name: task_delete
-- Delete a task.
DELETE FROM tasks WHERE id = $1;

-- name: task_open_of_session
-- The unfinished tasks of a session, with their holders.
SELECT id, status, holder FROM tasks WHERE session = $1 AND ended IS NULL ORDER BY number;

-- name: task_payloads
-- Stored arguments and results of tasks before a number, newest first, with their checksums.
SELECT number, checksum, arguments, 'the arguments', id FROM tasks
WHERE number IN (SELECT number FROM tasks WHERE number < $1 ORDER BY number DESC LIMIT $2)
UNION ALL
SELECT number, result_sum, result, 'the result', id FROM tasks
WHERE number IN (SELECT number FROM tasks WHERE number < $1 ORDER BY number DESC LIMIT $2) AND result IS NOT NULL
ORDER BY 1 DESC;

-- name: workflow_announce
-- Store the signature of a workflow that a worker runs.
INSERT INTO workflows (workflow, agent, signature) VALUES ($1, $2, $3)
ON CONFLICT (workflow, agent) DO UPDATE SET signature = excluded.signature;

-- name: workflow_withdraw
-- Remove a workflow that a worker no longer runs.
DELETE FROM workflows WHERE workflow = $1 AND agent = $2;

-- name: task_known
-- Tasks of these ids, for comparison.
SELECT tasks.id, workflow, arguments, manual FROM /* rows: tasks.id $1 */;

-- name: task_held
-- Tasks as the operations that change them read them, by number.
SELECT /* columns: held_task tasks */
FROM /* rows: tasks.number $1 */;

-- name: task_by_id
-- The tasks with these ids, with the columns of HeldTask.
SELECT /* columns: held_task tasks */
FROM /* rows: tasks.id $1 */;

-- name: task_held_by
-- The tasks that agents hold. Few tasks are held, which SQLite does not know, therefore the index is named.
SELECT /* columns: held_task */
FROM tasks /* sqlite: INDEXED BY tasks_leased */
WHERE status = 'running' AND holder /* in: $1 */;

-- name: task_horizon
-- When the next task is due (wall), when the next lease expires (awake), and the state of the clocks. Few tasks are
-- held, therefore the index is named.
SELECT
    (SELECT due FROM tasks WHERE due > 0 ORDER BY due LIMIT 1),
    (SELECT lease_until FROM tasks /* sqlite: INDEXED BY tasks_leased */ WHERE status = 'running' ORDER BY lease_until LIMIT 1),
    (SELECT value FROM meta WHERE key = 'task_clock');

-- name: task_waited
-- Tasks that have waited until their deadline. Few tasks are due, therefore the index is named.
SELECT id FROM tasks /* sqlite: INDEXED BY tasks_due */ WHERE due > 0 AND due <= $1 AND status = 'waiting';

-- name: task_lapsed
-- Tasks whose lease expired. Few tasks are held, therefore the index is named.
SELECT /* columns: held_task */
FROM tasks /* sqlite: INDEXED BY tasks_leased */ WHERE status = 'running' AND lease_until <= $1;

-- name: workflow_forget
-- Remove the workflows of agents whose incarnation has ended.
DELETE FROM workflows WHERE agent /* in: $1 */;

-- name: workflow_served
-- The workflows that running agents have announced, at most $1.
SELECT DISTINCT workflows.workflow
FROM workflows JOIN agents ON agents.id = workflows.agent
WHERE agents.status IN ('running', 'suspect')
ORDER BY workflows.workflow
LIMIT $1;

-- name: workflow_unserved
-- The workflows with ready tasks that no running agent has announced, each with the time since which the first of these
-- waits, at most $1. It visits each workflow once, not each task.
WITH RECURSIVE ready (workflow) AS (
    SELECT min(workflow) FROM tasks WHERE due = 0
    UNION ALL
    SELECT (SELECT min(tasks.workflow) FROM tasks WHERE due = 0 AND tasks.workflow > ready.workflow)
    FROM ready WHERE ready.workflow IS NOT NULL
), unserved (workflow, since) AS (
    SELECT ready.workflow, (
        SELECT tasks.updated FROM tasks
        WHERE due = 0 AND manual = 0 AND tasks.workflow = ready.workflow ORDER BY number LIMIT 1
    )
    FROM ready
    WHERE ready.workflow IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM workflows
        WHERE workflows.workflow = ready.workflow AND EXISTS (
            SELECT 1 FROM agents WHERE agents.id = workflows.agent AND agents.status IN ('running', 'suspect')
        )
    )
)
SELECT workflow, since FROM unserved WHERE since IS NOT NULL ORDER BY since, workflow LIMIT $1;

-- name: workflow_signatures
-- The signatures of these workflows that running agents have announced.
SELECT workflows.workflow, workflows.agent, workflows.signature
FROM workflows JOIN agents ON agents.id = workflows.agent
WHERE workflows.workflow /* in: $1 */ AND agents.status IN ('running', 'suspect')
ORDER BY workflows.workflow, workflows.agent;
