-- name: state_standing
-- Entries and tombstones without their values; $1 has a list of keys for each scope. Differs: opened by json_each.
SELECT state.scope, state.key, state.id, state.type, state.version, state.expires, state.created, state.checksum
FROM json_each($1) AS scopes CROSS JOIN json_each(scopes.value) AS wanted
CROSS JOIN state ON state.scope = scopes.key AND state.key = wanted.value;

-- name: state_values
-- The values of entries; $1 has a list of keys for each scope. Differs: opened by json_each.
SELECT state.scope, state.key, state.value
FROM json_each($1) AS scopes CROSS JOIN json_each(scopes.value) AS wanted
CROSS JOIN state ON state.scope = scopes.key AND state.key = wanted.value
WHERE state.value IS NOT NULL;

-- name: state_lengths
-- Entries that changed after a change, in the order of their changes, each with the length of its value, which is NULL
-- for a tombstone. Differs: the index is named, as below.
SELECT scope, key, change, length(value)
FROM state INDEXED BY state_by_change
WHERE scope = $1 AND change > $2
ORDER BY change
LIMIT $3;

-- name: state_changes
-- Entries with a key from $3 on and below $4 that changed after a change, tombstones too, in the order of their changes.
-- Differs: the index is named because SQLite, once analyzed, walks all these keys instead, and sorts.
SELECT scope, key, type, version, change, expires, author, created, updated, checksum, value
FROM state INDEXED BY state_by_change
WHERE scope = $1 AND change > $2 AND key >= $3 AND key < $4
ORDER BY change
LIMIT $5;

-- name: state_there
-- Every entry of these scopes that is there, in their order. Differs: lists by json_each.
SELECT state.scope, state.key, state.type, state.expires, state.checksum, state.author, state.value
FROM json_each($1) AS wanted CROSS JOIN state ON state.scope = wanted.value
WHERE state.value IS NOT NULL AND (state.expires IS NULL OR state.expires > $2)
ORDER BY wanted.key, state.key;

-- name: state_floors
-- Scopes of which tombstones were removed, with the highest version among those. Differs: lists by json_each.
SELECT scope, version
FROM json_each($1) AS wanted CROSS JOIN state_floors ON state_floors.scope = wanted.value;

-- name: state_sizes
-- How large the state of scopes is. Differs: lists by json_each.
SELECT scope, sum(200 + length(state.value))
FROM json_each($1) AS wanted CROSS JOIN state ON state.scope = wanted.value
WHERE state.value IS NOT NULL
GROUP BY scope;

-- name: state_archive
-- The entries of scopes that were changed after a change, with all that they have; $1 has the scopes and the changes.
-- Differs: lists by json_each.
SELECT scope, state.key, state.type, version, checksum, expires, author, created, updated, state.value
FROM json_each($1) AS wanted CROSS JOIN state
    ON state.scope = json_extract(wanted.value, '$[0]') AND state.change > json_extract(wanted.value, '$[1]')
WHERE state.value IS NOT NULL;

-- name: state_archive_tombstones
-- Tombstones by their rows. Differs: lists by json_each.
SELECT scope, state.key, state.type, version, checksum, expires, author, created, updated, state.value
FROM json_each($1) AS wanted CROSS JOIN state ON state.id = wanted.value
WHERE state.value IS NULL;

-- name: state_raise_floors
-- Tombstones that go leave the highest version of their scope behind; $1 has their rows and changes.
-- Differs: lists by json_each; max of two numbers is greatest elsewhere.
INSERT INTO state_floors (scope, version)
SELECT scope, max(version)
FROM json_each($1) AS gone CROSS JOIN state ON state.id = json_extract(gone.value, '$[0]')
WHERE state.value IS NULL AND change = json_extract(gone.value, '$[1]')
GROUP BY scope
ON CONFLICT (scope) DO UPDATE SET version = max(version, excluded.version);

-- name: state_remove_tombstones
-- Tombstones that are archived go, unless they were written since; $1 has their rows and changes.
-- Differs: lists by json_each.
DELETE FROM state
WHERE id IN (
        SELECT state.id
        FROM json_each($1) AS gone CROSS JOIN state ON state.id = json_extract(gone.value, '$[0]')
        WHERE state.value IS NULL AND change = json_extract(gone.value, '$[1]')
    )
RETURNING id;

-- name: state_export
-- Entries and tombstones by their rows. Differs: lists by json_each.
SELECT scope, state.key, state.type, version, checksum, expires, author, created, updated, state.value
FROM json_each($1) AS wanted CROSS JOIN state ON state.id = wanted.value;

-- name: state_of_scopes
-- The rows of scopes, and how large they are. Differs: lists by json_each.
SELECT state.id, 200 + coalesce(length(state.value), 0)
FROM json_each($1) AS wanted CROSS JOIN state ON state.scope = wanted.value;
