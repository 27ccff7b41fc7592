-- name: checkpoint_insert
-- A new checkpoint.
INSERT INTO checkpoints (
    owner_kind, owner, name, session, created, checksum, size, file_count, notes, files, snapshot
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
RETURNING id;

-- name: checkpoint_again
-- Save an old checkpoint once more, as the newest of its owner.
INSERT INTO checkpoints (
    owner_kind, owner, name, session, created, checksum, size, file_count, notes, files, snapshot
)
SELECT owner_kind, owner, name, session, $1, checksum, size, file_count, notes, files, snapshot
FROM checkpoints
WHERE id = $2
RETURNING id;

-- name: checkpoint_surplus
-- The checkpoints of a name except the newest $4, oldest first, at most $5, each with about the bytes it takes.
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
-- The oldest $3 checkpoints of somebody, each with about the bytes it takes.
SELECT id, size + 100 * file_count FROM checkpoints WHERE owner_kind = $1 AND owner = $2 ORDER BY id LIMIT $3;

-- name: checkpoint_remove
-- A checkpoint goes with others.
DELETE FROM checkpoints WHERE id = $1;

-- name: checkpoint_names
-- The names under which somebody has checkpoints.
SELECT DISTINCT name FROM checkpoints WHERE owner_kind = $1 AND owner = $2 ORDER BY name;

-- name: checkpoint_delete
-- One checkpoint goes for good.
DELETE FROM checkpoints WHERE id = $1 RETURNING owner_kind, owner, name;

-- name: checkpoint_get
-- All of one checkpoint.
SELECT id, owner_kind, owner, name, notes, session, created, checksum, files, snapshot FROM checkpoints WHERE id = $1;

-- name: checkpoint_latest
-- The newest checkpoint of somebody.
SELECT id, owner_kind, owner, name, notes, session, created, checksum, files, snapshot FROM checkpoints
WHERE owner_kind = $1 AND owner = $2
ORDER BY id DESC
LIMIT 1;

-- name: checkpoint_latest_of
-- The newest checkpoint that each agent of a session saved in it, without its snapshot.
SELECT checkpoints.id, checkpoints.owner_kind, checkpoints.owner, checkpoints.name, checkpoints.notes,
    checkpoints.session, checkpoints.created, checkpoints.size, checkpoints.file_count
FROM agents JOIN checkpoints ON checkpoints.id = (
    SELECT max(id) FROM checkpoints WHERE owner_kind = 'agent' AND owner = agents.id AND session = $1
)
WHERE agents.session = $1;

-- name: checkpoint_newest_within
-- The newest checkpoint that an agent saved in a session, or (NULL) in none, without its snapshot.
SELECT id, owner_kind, owner, name, notes, session, created, size, file_count FROM checkpoints
WHERE owner_kind = 'agent' AND owner = $1
    AND (session = $2 OR (session IS NULL AND CAST($2 AS text) IS NULL))
ORDER BY id DESC
LIMIT 1;

-- name: checkpoint_latest_named
-- The newest checkpoint of somebody under one name.
SELECT id, owner_kind, owner, name, notes, session, created, checksum, files, snapshot FROM checkpoints
WHERE owner_kind = $1 AND owner = $2 AND name = $3
ORDER BY id DESC
LIMIT 1;

-- name: checkpoint_owner
-- Whose a checkpoint is.
SELECT owner_kind, owner FROM checkpoints WHERE id = $1;

-- name: checkpoint_files
-- The files that a checkpoint refers to.
SELECT files FROM checkpoints WHERE id = $1;

-- name: checkpoint_list
-- Checkpoints of all owners, newest first, before the cursor; a NULL filter takes all.
SELECT id, owner_kind, owner, name, notes, session, created, size, file_count FROM checkpoints
WHERE id < $1 AND (CAST($2 AS text) IS NULL OR owner_kind = $2) AND (CAST($3 AS text) IS NULL OR name = $3)
ORDER BY id DESC
LIMIT $4;

-- name: checkpoint_history
-- The checkpoints of one owner, newest first, before the cursor.
SELECT id, owner_kind, owner, name, notes, session, created, size, file_count FROM checkpoints
WHERE owner_kind = $1 AND owner = $2 AND id < $3
ORDER BY id DESC
LIMIT $4;

-- name: checkpoint_history_named
-- The checkpoints of one owner under one name, newest first, before the cursor.
SELECT id, owner_kind, owner, name, notes, session, created, size, file_count FROM checkpoints
WHERE owner_kind = $1 AND owner = $2 AND name = $3 AND id < $4
ORDER BY id DESC
LIMIT $5;

-- name: checkpoint_groups
-- Owners and names, after one, that have more than so many checkpoints.
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
-- A checkpoint from an archive.
INSERT INTO checkpoints (
    id, owner_kind, owner, name, session, created, checksum, size, file_count, notes, files, snapshot
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: checkpoint_same
-- Whether a checkpoint is the one that an archive has.
SELECT 1 FROM checkpoints WHERE id = $1 AND created = $2 AND checksum = $3;

-- name: checkpoint_payloads
-- Stored snapshots with their checksums, newest first, before the cursor.
SELECT id, checksum, snapshot, id FROM checkpoints WHERE id < $1 ORDER BY id DESC LIMIT $2;

-- name: checkpoint_after
-- Checkpoints in the order of their ids, after one and up to another.
SELECT id, size + 500 FROM checkpoints WHERE id > $1 AND id <= $2 ORDER BY id LIMIT $3;

-- name: checkpoint_alike
-- Whether an owner has this very checkpoint, whatever its number.
SELECT 1 FROM checkpoints
WHERE owner_kind = $1 AND owner = $2 AND name = $3 AND created = $4 AND checksum = $5;

-- name: checkpoint_newest
-- The newest checkpoint of an owner and a name: its number, and when it was made.
SELECT id, created FROM checkpoints WHERE owner_kind = $1 AND owner = $2 AND name = $3 ORDER BY id DESC LIMIT 1;
