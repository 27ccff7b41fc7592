-- name: process_restore
-- Insert a process of an archive. Differs: the sequence must continue after its id.
WITH restored AS (
    INSERT INTO processes (id, host, boot, pid, started, status, created, ended, beat)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 0)
    ON CONFLICT DO NOTHING
    RETURNING id
)
SELECT id FROM restored WHERE identity_raise('processes', id);
