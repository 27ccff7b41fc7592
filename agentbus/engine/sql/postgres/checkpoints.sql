-- name: checkpoint_restore
-- Insert a checkpoint of an archive. Differs: the sequence must continue after its id.
WITH restored AS (
    INSERT INTO checkpoints (
        id, owner_kind, owner, name, session, created, checksum, size, file_count, notes, files, snapshot
    )
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
    ON CONFLICT DO NOTHING
    RETURNING id
)
SELECT id FROM restored WHERE identity_raise('checkpoints', id);
