-- name: state_value
-- The value of one entry that is there.
SELECT value, checksum FROM state
WHERE scope = $1 AND key = $2 AND value IS NOT NULL AND (expires IS NULL OR expires > $3);

-- name: state_entry
-- One entry that is there, with all that is known of it.
SELECT scope, key, type, version, change, expires, author, created, updated, checksum, value FROM state
WHERE scope = $1 AND key = $2 AND value IS NOT NULL AND (expires IS NULL OR expires > $3);

-- name: state_list
-- Entries that are there, with a key from $2 on and below $3, in the order of their keys.
SELECT scope, key, type, version, change, expires, author, created, updated, checksum, value FROM state
WHERE scope = $1 AND key >= $2 AND key < $3 AND value IS NOT NULL AND (expires IS NULL OR expires > $4)
ORDER BY key
LIMIT $5;

-- name: state_insert
-- A new entry.
INSERT INTO state (type, version, change, checksum, expires, author, created, updated, value, scope, key)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11);

-- name: state_update
-- Change an entry, or make a tombstone of it. Not by an upsert, which checks every format twice and takes half as long
-- again.
UPDATE state SET
    type = $1, version = $2, change = $3, checksum = $4, expires = $5, author = $6, created = $7, updated = $8, value = $9
WHERE id = $10;

-- name: state_bury
-- Make a tombstone of an entry that expired, or whose agent was deleted.
UPDATE state SET change = $1, checksum = NULL, expires = NULL, author = NULL, updated = $2, value = NULL
WHERE scope = $3 AND key = $4;

-- name: state_next_expiry
-- When the next entry of a scope expires.
SELECT min(expires) FROM state WHERE scope = $1 AND expires IS NOT NULL;

-- name: state_first_expiry
-- When the next entry expires, of whatever scope.
SELECT min(expires) FROM state WHERE expires IS NOT NULL;

-- name: state_expired
-- What has expired, of whatever scope.
SELECT scope, key FROM state WHERE expires IS NOT NULL AND expires <= $1 ORDER BY expires LIMIT $2;

-- name: state_last_change
-- The last change number given out.
SELECT value FROM counters WHERE name = 'change';

-- name: state_payloads
-- Stored values with their checksums, before the cursor.
SELECT id, checksum, value, key, scope FROM state WHERE id < $1 AND value IS NOT NULL ORDER BY id DESC LIMIT $2;

-- name: state_row
-- An entry or a tombstone: its row, its version, and whether its value is gone.
SELECT id, version, CASE WHEN value IS NULL THEN 1 ELSE 0 END FROM state WHERE scope = $1 AND key = $2;

-- name: state_tombstones
-- Tombstones older than $3, oldest first, after ($1, $2).
SELECT id, updated, change FROM state
WHERE value IS NULL AND (updated, id) > ($1, $2) AND updated <= $3
ORDER BY updated, id
LIMIT $4;

-- name: state_after
-- Entries and tombstones in the order of their rows, after one and up to another.
SELECT id, 200 + coalesce(length(value), 0) FROM state WHERE id > $1 AND id <= $2 ORDER BY id LIMIT $3;

-- name: state_checksum
-- The checksum of an entry; NULL for a tombstone.
SELECT checksum FROM state WHERE scope = $1 AND key = $2;
