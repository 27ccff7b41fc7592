-- name: task_ready
-- Tasks of these workflows that are ready, oldest first, at most $2. Differs: no LATERAL.
SELECT ready.number, ready.id, ready.workflow, ready.name, ready.session, ready.auto, ready.lease + 1,
    CASE WHEN ready.started IS NULL THEN 1 ELSE 0 END, ready.notes, ready.context, ready.settings, ready.checksum,
    ready.arguments, ready.generation, ready.losses, ready.trace
FROM json_each($1) AS wanted
JOIN tasks AS ready ON ready.number IN (
    SELECT number FROM tasks WHERE workflow = wanted.value AND due = 0 AND manual = 0 ORDER BY number LIMIT $2
)
ORDER BY ready.number
LIMIT $2;
