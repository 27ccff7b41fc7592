-- name: checkpoint_sizes
-- The checkpoints of owners, oldest first. Differs: lists are arrays.
SELECT checkpoints.id, checkpoints.owner, checkpoints.size + 500
FROM checkpoints
WHERE owner_kind = $1 AND owner = ANY ($2)
ORDER BY id;

-- name: checkpoint_present
-- Which of these checkpoints there are. Differs: lists are arrays.
SELECT checkpoints.id FROM checkpoints
WHERE checkpoints.id = ANY ($1);

-- name: checkpoint_remove_all
-- Checkpoints that are archived go. Differs: lists are arrays.
DELETE FROM checkpoints WHERE id = ANY ($1) RETURNING id;

-- name: checkpoint_archive
-- Checkpoints with all that they have. Differs: lists are arrays.
SELECT checkpoints.id, owner_kind, owner, name, session, created, checksum, size, file_count, notes, files, snapshot
FROM checkpoints
WHERE checkpoints.id = ANY ($1)
ORDER BY id;

-- name: checkpoint_restore
-- A checkpoint from an archive. Differs: ids that are given out later must be others.
WITH restored AS (
    INSERT INTO checkpoints (
        id, owner_kind, owner, name, session, created, checksum, size, file_count, notes, files, snapshot
    )
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
    ON CONFLICT DO NOTHING
    RETURNING id
)
SELECT id FROM restored WHERE identity_raise('checkpoints', id);
