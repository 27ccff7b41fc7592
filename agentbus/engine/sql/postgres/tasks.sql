-- name: task_ready
-- Tasks of these workflows that are ready, oldest first, at most $2. Differs: LATERAL.
SELECT ready.number, ready.id, ready.workflow, ready.name, ready.session, ready.auto, ready.lease + 1,
    CASE WHEN ready.started IS NULL THEN 1 ELSE 0 END, ready.notes, ready.context, ready.settings, ready.checksum,
    ready.arguments, ready.generation, ready.losses, ready.trace
FROM unnest($1::text[]) AS wanted (workflow)
CROSS JOIN LATERAL (
    SELECT * FROM tasks WHERE tasks.workflow = wanted.workflow AND tasks.due = 0 AND tasks.manual = 0
    ORDER BY tasks.number LIMIT $2
) AS ready
ORDER BY ready.number
LIMIT $2;
