-- name: checkpoint_sizes
-- The checkpoints of owners, oldest first. Differs: lists by json_each.
SELECT checkpoints.id, checkpoints.owner, checkpoints.size + 500
FROM json_each($2) AS owners CROSS JOIN checkpoints ON owner_kind = $1 AND owner = owners.value;

-- name: checkpoint_present
-- Which of these checkpoints there are. Differs: lists by json_each.
SELECT checkpoints.id FROM json_each($1) AS wanted CROSS JOIN checkpoints ON checkpoints.id = wanted.value;

-- name: checkpoint_remove_all
-- Checkpoints that are archived go. Differs: lists by json_each.
DELETE FROM checkpoints WHERE id IN (SELECT value FROM json_each($1)) RETURNING id;

-- name: checkpoint_archive
-- Checkpoints with all that they have. Differs: lists by json_each.
SELECT checkpoints.id, owner_kind, owner, name, session, created, checksum, size, file_count, notes, files, snapshot
FROM json_each($1) AS wanted CROSS JOIN checkpoints ON checkpoints.id = wanted.value;
