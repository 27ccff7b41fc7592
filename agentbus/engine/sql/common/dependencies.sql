-- name: dependency_insert
-- Make a task wait for another one; $3 is the time at which that one completed, if it has.
INSERT INTO dependencies (task, dependency, completed) VALUES ($1, $2, $3);

-- name: dependency_add
-- Make a task wait for another one, unless it does already.
INSERT INTO dependencies (task, dependency, completed) VALUES ($1, $2, $3)
ON CONFLICT (task, dependency) DO NOTHING;

-- name: dependency_remove
-- Remove a dependency of a task.
DELETE FROM dependencies WHERE task = $1 AND dependency = $2;

-- name: dependency_delete
-- Delete the dependencies of a task.
DELETE FROM dependencies WHERE task = (SELECT number FROM tasks WHERE id = $1);

-- name: dependency_statuses
-- The status and the end of tasks that others are to wait for.
SELECT tasks.id, tasks.status, tasks.ended FROM /* rows: tasks.id $1 */;

-- name: dependency_numbers
-- The numbers of tasks, by id.
SELECT tasks.id, tasks.number FROM /* rows: tasks.id $1 */;

-- name: dependency_of
-- The dependencies of tasks, each with its present status.
SELECT dependencies.task, dependencies.dependency, coalesce(tasks.status, 'deleted'), dependencies.completed
FROM dependencies LEFT JOIN tasks ON tasks.id = dependencies.dependency
WHERE dependencies.task /* in: $1 */
ORDER BY dependencies.task, dependencies.dependency;

-- name: dependency_subject
-- A task whose dependencies are to be changed: its number, status, start and policy.
SELECT number, status, started, on_failed FROM tasks WHERE id = $1;

-- name: dependency_open
-- The dependencies of a task that it still waits for.
SELECT dependency FROM dependencies WHERE task = $1 AND completed IS NULL ORDER BY dependency;

-- name: dependency_dependents
-- The tasks that wait for ended ones: number, id, status, policy; and the task that ended, its status and its end.
SELECT waiting.number, waiting.id, waiting.status, waiting.on_failed, ended.id, ended.status, ended.ended
FROM dependencies
JOIN tasks AS waiting ON waiting.number = dependencies.task
JOIN tasks AS ended ON ended.id = dependencies.dependency
WHERE dependencies.dependency /* in: $1 */ AND dependencies.completed IS NULL AND ended.ended IS NOT NULL
ORDER BY waiting.number, ended.number;

-- name: dependency_complete
-- Record that a dependency has completed.
UPDATE dependencies SET completed = $1 WHERE task = $2 AND dependency = $3;

-- name: dependency_reopen
-- Let the tasks that have not started wait again for a task that runs again.
UPDATE dependencies SET completed = NULL
WHERE dependency = $1 AND completed IS NOT NULL
    AND task IN (SELECT number FROM tasks WHERE started IS NULL AND status IN ('waiting', 'halted', 'stopped'));

-- name: dependency_satisfied
-- Those of the waiting tasks whose dependencies have all completed: number, id, and whether each is a work item.
SELECT tasks.number, tasks.id, tasks.manual
FROM /* rows: tasks.number $1 */
    AND tasks.status = 'waiting'
    AND NOT EXISTS (SELECT 1 FROM dependencies WHERE dependencies.task = tasks.number AND completed IS NULL);

-- name: dependency_release
-- Let a task start whose dependencies have completed, but not before its time.
UPDATE tasks SET
    status = 'pending', due = CASE WHEN not_before > $1 THEN not_before ELSE 0 END, waits = '[]', updated = $1
WHERE number = $2;

-- name: dependency_block
-- Let a task wait for its dependencies. Its time, if it has one, stays the earliest.
UPDATE tasks SET
    status = 'waiting', not_before = CASE WHEN due > not_before THEN due ELSE not_before END, due = NULL, ended = NULL,
    waits = '[]', error = NULL, losses = 0, updated = $1
WHERE number = $2;

-- name: dependency_policy
-- Set what happens to a task when a dependency fails or is stopped.
UPDATE tasks SET on_failed = $1, updated = $2 WHERE number = $3;

-- name: dependency_needed_by
-- The unfinished tasks that cannot end before these: those that wait for them, and those that they are sub-tasks of.
SELECT dependencies.dependency, tasks.id
FROM dependencies JOIN tasks ON tasks.number = dependencies.task
WHERE dependencies.dependency /* in: $1 */ AND dependencies.completed IS NULL
UNION ALL
SELECT tasks.id, tasks.parent
FROM tasks WHERE tasks.id /* in: $1 */ AND tasks.parent IS NOT NULL;

-- name: dependency_missed
-- Completed tasks that others still wait for: a process of an older version completed them.
SELECT DISTINCT tasks.id FROM dependencies JOIN tasks ON tasks.id = dependencies.dependency
WHERE dependencies.completed IS NULL AND tasks.status = 'completed'
LIMIT $1;

-- name: dependency_stuck
-- Waiting tasks, each with a dependency that has failed, was stopped or was deleted.
SELECT waiting.id, dependencies.dependency, coalesce(tasks.status, 'deleted')
FROM dependencies
JOIN tasks AS waiting ON waiting.number = dependencies.task
LEFT JOIN tasks ON tasks.id = dependencies.dependency
WHERE dependencies.completed IS NULL AND waiting.status = 'waiting'
    AND (tasks.id IS NULL OR tasks.status IN ('failed', 'stopped'))
ORDER BY waiting.number, dependencies.dependency
LIMIT $1;

-- name: dependency_archive
-- The dependencies of a task.
SELECT dependencies.dependency, dependencies.completed
FROM dependencies JOIN tasks ON tasks.number = dependencies.task
WHERE tasks.id = $1
ORDER BY dependencies.dependency;
