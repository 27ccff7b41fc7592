-- name: checkpoint_insert
-- Insert a checkpoint.
INSERT INTO checkpoints (
    owner_kind, owner, name, session, created, checksum, size, file_count, notes, files, snapshot
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
RETURNING id;

-- name: checkpoint_again
-- Copy an old checkpoint as the newest one of its owner.
INSERT INTO checkpoints (
    owner_kind, owner, name, session, created, checksum, size, file_count, notes, files, snapshot
)
SELECT owner_kind, owner, name, session, $1, checksum, size, file_count, notes, files, snapshot
FROM checkpoints
WHERE id = $2
RETURNING id;

-- name: checkpoint_surplus
-- The checkpoints of a name except the newest $4, oldest first, at most $5, with an estimate of their size.
SELECT id, size + 100 * file_count FROM checkpoints
WHERE owner_kind = $1 AND owner = $2 AND name = $3 AND id <= (
    SELECT id FROM checkpoints
    WHERE owner_kind = $1 AND owner = $2 AND name = $3
    ORDER BY id DESC
    LIMIT 1 OFFSET $4
)
ORDER BY id
LIMIT $5;

-- name: checkpoint_oldest
-- The oldest $3 checkpoints of an owner, with an estimate of their size.
SELECT id, size + 100 * file_count FROM checkpoints WHERE owner_kind = $1 AND owner = $2 ORDER BY id LIMIT $3;

-- name: checkpoint_remove
-- Delete a checkpoint in a batch.
DELETE FROM checkpoints WHERE id = $1;

-- name: checkpoint_names
-- The names of an owner's checkpoints.
SELECT DISTINCT name FROM checkpoints WHERE owner_kind = $1 AND owner = $2 ORDER BY name;

-- name: checkpoint_delete
-- Delete one checkpoint.
DELETE FROM checkpoints WHERE id = $1 RETURNING owner_kind, owner, name;

-- name: checkpoint_get
-- One checkpoint.
SELECT id, owner_kind, owner, name, notes, session, created, checksum, files, snapshot FROM checkpoints WHERE id = $1;

-- name: checkpoint_latest
-- The newest checkpoint of an owner.
SELECT id, owner_kind, owner, name, notes, session, created, checksum, files, snapshot FROM checkpoints
WHERE owner_kind = $1 AND owner = $2
ORDER BY id DESC
LIMIT 1;

-- name: checkpoint_latest_of
-- The newest checkpoint of each agent of a session in it, without its snapshot.
SELECT checkpoints.id, checkpoints.owner_kind, checkpoints.owner, checkpoints.name, checkpoints.notes,
    checkpoints.session, checkpoints.created, checkpoints.size, checkpoints.file_count
FROM agents JOIN checkpoints ON checkpoints.id = (
    SELECT max(id) FROM checkpoints WHERE owner_kind = 'agent' AND owner = agents.id AND session = $1
)
WHERE agents.session = $1;

-- name: checkpoint_newest_within
-- The newest checkpoint of an agent in a session, or (NULL) in none, without its snapshot.
SELECT id, owner_kind, owner, name, notes, session, created, size, file_count FROM checkpoints
WHERE owner_kind = 'agent' AND owner = $1
    AND (session = $2 OR (session IS NULL AND CAST($2 AS text) IS NULL))
ORDER BY id DESC
LIMIT 1;

-- name: checkpoint_latest_named
-- The newest checkpoint of an owner under one name.
SELECT id, owner_kind, owner, name, notes, session, created, checksum, files, snapshot FROM checkpoints
WHERE owner_kind = $1 AND owner = $2 AND name = $3
ORDER BY id DESC
LIMIT 1;

-- name: checkpoint_owner
-- The owner of a checkpoint.
SELECT owner_kind, owner FROM checkpoints WHERE id = $1;

-- name: checkpoint_files
-- The files that a checkpoint refers to.
SELECT files FROM checkpoints WHERE id = $1;

-- name: checkpoint_list
-- Checkpoints of all owners before the cursor, newest first; a NULL filter matches all.
SELECT id, owner_kind, owner, name, notes, session, created, size, file_count FROM checkpoints
WHERE id < $1 AND (CAST($2 AS text) IS NULL OR owner_kind = $2) AND (CAST($3 AS text) IS NULL OR name = $3)
ORDER BY id DESC
LIMIT $4;

-- name: checkpoint_history
-- The checkpoints of one owner before the cursor, newest first.
SELECT id, owner_kind, owner, name, notes, session, created, size, file_count FROM checkpoints
WHERE owner_kind = $1 AND owner = $2 AND id < $3
ORDER BY id DESC
LIMIT $4;

-- name: checkpoint_history_named
-- The checkpoints of one owner under one name before the cursor, newest first.
SELECT id, owner_kind, owner, name, notes, session, created, size, file_count FROM checkpoints
WHERE owner_kind = $1 AND owner = $2 AND name = $3 AND id < $4
ORDER BY id DESC
LIMIT $5;

-- name: checkpoint_groups
-- Owners and names after a cursor that have more than $4 checkpoints.
SELECT owner_kind, owner, name FROM checkpoints
WHERE (owner_kind, owner, name) > ($1, $2, $3)
GROUP BY owner_kind, owner, name
HAVING count(*) > $4
ORDER BY owner_kind, owner, name
LIMIT $5;

-- name: checkpoint_ages
-- The checkpoints of an owner and a name, newest first.
SELECT id, created, size FROM checkpoints WHERE owner_kind = $1 AND owner = $2 AND name = $3 ORDER BY id DESC;

-- name: checkpoint_border
-- The newest checkpoint of an owner and a name that is not among the last $4.
SELECT id FROM checkpoints WHERE owner_kind = $1 AND owner = $2 AND name = $3 ORDER BY id DESC LIMIT 1 OFFSET $4;

-- name: checkpoint_restore
-- Insert a checkpoint of an archive.
INSERT INTO checkpoints (
    id, owner_kind, owner, name, session, created, checksum, size, file_count, notes, files, snapshot
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: checkpoint_same
-- Whether a checkpoint is the one in an archive.
SELECT 1 FROM checkpoints WHERE id = $1 AND created = $2 AND checksum = $3;

-- name: checkpoint_payloads
-- Stored snapshots before the cursor, newest first, with their checksums.
SELECT id, checksum, snapshot, id FROM checkpoints WHERE id < $1 ORDER BY id DESC LIMIT $2;

-- name: checkpoint_after
-- Checkpoints after one id and up to another, ordered by id.
SELECT id, size + 500 FROM checkpoints WHERE id > $1 AND id <= $2 ORDER BY id LIMIT $3;

-- name: checkpoint_alike
-- Whether an owner has this checkpoint under any id.
SELECT 1 FROM checkpoints
WHERE owner_kind = $1 AND owner = $2 AND name = $3 AND created = $4 AND checksum = $5;

-- name: checkpoint_newest
-- The id and time of the newest checkpoint of an owner and a name.
SELECT id, created FROM checkpoints WHERE owner_kind = $1 AND owner = $2 AND name = $3 ORDER BY id DESC LIMIT 1;

-- name: checkpoint_present
-- The checkpoints among these that exist.
SELECT checkpoints.id FROM /* rows: checkpoints.id $1 */;

-- name: checkpoint_remove_all
-- Delete archived checkpoints.
DELETE FROM checkpoints WHERE id /* in: $1 */ RETURNING id;

-- name: checkpoint_archive
-- Checkpoints for an archive, ordered by id.
SELECT checkpoints.id, owner_kind, owner, name, session, created, checksum, size, file_count, notes, files, snapshot
FROM /* rows: checkpoints.id $1 */
/* postgres: ORDER BY id */;

-- name: checkpoint_sizes
-- The checkpoints of these owners, with an estimate of their size.
SELECT checkpoints.id, checkpoints.owner, checkpoints.size + 500
FROM checkpoints WHERE owner_kind = $1 AND owner /* in: $2 */
/* postgres: ORDER BY id */;
