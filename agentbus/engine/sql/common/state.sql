-- name: state_value
-- The value of one entry.
SELECT value, checksum FROM state
WHERE scope = $1 AND key = $2 AND value IS NOT NULL AND (expires IS NULL OR expires > $3);

-- name: state_entry
-- One entry.
SELECT scope, key, type, version, change, expires, author, created, updated, checksum, value FROM state
WHERE scope = $1 AND key = $2 AND value IS NOT NULL AND (expires IS NULL OR expires > $3);

-- name: state_list
-- Entries with a key from $2 on and below $3, ordered by key.
SELECT scope, key, type, version, change, expires, author, created, updated, checksum, value FROM state
WHERE scope = $1 AND key >= $2 AND key < $3 AND value IS NOT NULL AND (expires IS NULL OR expires > $4)
ORDER BY key
LIMIT $5;

-- name: state_scopes
-- Scopes after $1, ordered, with the number of their entries and the time of the last change.
SELECT scope, count(*), max(updated) FROM state
WHERE scope > $1 AND value IS NOT NULL AND (expires IS NULL OR expires > $2)
GROUP BY scope
ORDER BY scope
LIMIT $3;

-- name: state_insert
-- Insert an entry.
INSERT INTO state (type, version, change, checksum, expires, author, created, updated, value, scope, key)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11);

-- name: state_update
-- Change an entry, or make it a tombstone. Not an upsert, which checks every format twice and takes 1.5 times as long.
UPDATE state SET
    type = $1, version = $2, change = $3, checksum = $4, expires = $5, author = $6, created = $7, updated = $8, value = $9
WHERE id = $10;

-- name: state_erase
-- Make an entry a tombstone that expired, or whose agent was deleted.
UPDATE state SET change = $1, checksum = NULL, expires = NULL, author = NULL, updated = $2, value = NULL
WHERE scope = $3 AND key = $4;

-- name: state_next_expiry
-- When the next entry of a scope expires.
SELECT min(expires) FROM state WHERE scope = $1 AND expires IS NOT NULL;

-- name: state_first_expiry
-- When the next entry of any scope expires.
SELECT min(expires) FROM state WHERE expires IS NOT NULL;

-- name: state_expired
-- Expired entries of any scope.
SELECT scope, key FROM state WHERE expires IS NOT NULL AND expires <= $1 ORDER BY expires LIMIT $2;

-- name: state_last_change
-- The last change number issued.
SELECT value FROM counters WHERE name = 'change';

-- name: state_payloads
-- Stored values before the cursor, with their checksums.
SELECT id, checksum, value, key, scope FROM state WHERE id < $1 AND value IS NOT NULL ORDER BY id DESC LIMIT $2;

-- name: state_row
-- The row id and version of an entry or a tombstone, and whether it is a tombstone.
SELECT id, version, CASE WHEN value IS NULL THEN 1 ELSE 0 END FROM state WHERE scope = $1 AND key = $2;

-- name: state_tombstones
-- Tombstones older than $3, oldest first, after ($1, $2).
SELECT id, updated, change FROM state
WHERE value IS NULL AND (updated, id) > ($1, $2) AND updated <= $3
ORDER BY updated, id
LIMIT $4;

-- name: state_after
-- Entries and tombstones after one row and up to another, ordered by row.
SELECT id, 200 + coalesce(length(value), 0) FROM state WHERE id > $1 AND id <= $2 ORDER BY id LIMIT $3;

-- name: state_checksum
-- The checksum of an entry; NULL for a tombstone.
SELECT checksum FROM state WHERE scope = $1 AND key = $2;

-- name: state_lengths
-- Entries and tombstones after a change, ordered by change, with the length of their values (NULL for a tombstone). The
-- index is named as in state_changes.
SELECT scope, key, change, length(value)
FROM state /* sqlite: INDEXED BY state_by_change */
WHERE scope = $1 AND change > $2
ORDER BY change
LIMIT $3;

-- name: state_changes
-- Entries and tombstones with a key from $3 on and below $4 after a change, ordered by change. SQLite would read all
-- these keys and sort them after ANALYZE, therefore the index is named.
SELECT scope, key, type, version, change, expires, author, created, updated, checksum, value
FROM state /* sqlite: INDEXED BY state_by_change */
WHERE scope = $1 AND change > $2 AND key >= $3 AND key < $4
ORDER BY change
LIMIT $5;

-- name: state_floors
-- The highest version of removed tombstones, by scope.
SELECT scope, version
FROM /* rows: state_floors.scope $1 */;

-- name: state_sizes
-- The size of the state of scopes.
SELECT scope, sum(200 + length(state.value))
FROM /* rows: state.scope $1 */ AND state.value IS NOT NULL
GROUP BY scope;

-- name: state_archive_tombstones
-- Tombstones for an archive, ordered by row.
SELECT scope, state.key, state.type, version, checksum, expires, author, created, updated, state.value
FROM /* rows: state.id $1 */ AND state.value IS NULL
/* postgres: ORDER BY id */;

-- name: state_export
-- Entries and tombstones for an export, ordered by row.
SELECT scope, state.key, state.type, version, checksum, expires, author, created, updated, state.value
FROM /* rows: state.id $1 */
/* postgres: ORDER BY id */;

-- name: state_of_scopes
-- The rows of scopes, with an estimate of their size.
SELECT state.id, 200 + coalesce(length(state.value), 0)
FROM /* rows: state.scope $1 */
/* postgres: ORDER BY id */;
