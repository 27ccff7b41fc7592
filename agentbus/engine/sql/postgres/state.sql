-- name: state_standing
-- Entries and tombstones without their values; $1 has a list of keys for each scope. Differs: whoever changes state holds
-- the counter of changes until the commit, so that what is found here stays so.
SELECT value FROM counters WHERE name = 'change' FOR UPDATE;
SELECT state.scope, state.key, state.id, state.type, state.version, state.expires, state.created, state.checksum
FROM json_each(CAST($1 AS json)) AS scopes
CROSS JOIN LATERAL json_array_elements_text(scopes.value) AS wanted (key)
JOIN state ON state.scope = scopes.key AND state.key = wanted.key;

-- name: state_values
-- The values of entries; $1 has a list of keys for each scope. Differs: JSON is opened in other words.
SELECT state.scope, state.key, state.value
FROM json_each(CAST($1 AS json)) AS scopes
CROSS JOIN LATERAL json_array_elements_text(scopes.value) AS wanted (key)
JOIN state ON state.scope = scopes.key AND state.key = wanted.key
WHERE state.value IS NOT NULL;

-- name: state_lengths
-- Entries that changed after a change, in the order of their changes, each with the length of its value, which is NULL
-- for a tombstone. Differs: no index needs to be named.
SELECT scope, key, change, length(value)
FROM state
WHERE scope = $1 AND change > $2
ORDER BY change
LIMIT $3;

-- name: state_changes
-- Entries with a key from $3 on and below $4 that changed after a change, tombstones too, in the order of their changes.
-- Differs: no index needs to be named.
SELECT scope, key, type, version, change, expires, author, created, updated, checksum, value
FROM state
WHERE scope = $1 AND change > $2 AND key >= $3 AND key < $4
ORDER BY change
LIMIT $5;

-- name: state_there
-- Every entry of these scopes that is there, in their order. Differs: lists are arrays.
SELECT state.scope, state.key, state.type, state.expires, state.checksum, state.author, state.value
FROM unnest($1::text[]) WITH ORDINALITY AS wanted (scope, position)
JOIN state ON state.scope = wanted.scope
WHERE state.value IS NOT NULL AND (state.expires IS NULL OR state.expires > $2)
ORDER BY wanted.position, state.key;

-- name: state_floors
-- Scopes of which tombstones were removed, with the highest version among those. Differs: lists are arrays.
SELECT scope, version
FROM state_floors
WHERE state_floors.scope = ANY ($1);

-- name: state_sizes
-- How large the state of scopes is. Differs: lists are arrays.
SELECT scope, sum(200 + length(state.value))
FROM state
WHERE state.scope = ANY ($1)
    AND state.value IS NOT NULL
GROUP BY scope;

-- name: state_archive
-- The entries of scopes that were changed after a change, with all that they have; $1 has the scopes and the changes.
-- Differs: JSON is opened in other words.
SELECT scope, state.key, state.type, version, checksum, expires, author, created, updated, state.value
FROM json_array_elements(CAST($1 AS json)) AS wanted
JOIN state ON state.scope = wanted->>0 AND state.change > (wanted->>1)::bigint
WHERE state.value IS NOT NULL
ORDER BY scope, key;

-- name: state_archive_tombstones
-- Tombstones by their rows. Differs: lists are arrays.
SELECT scope, state.key, state.type, version, checksum, expires, author, created, updated, state.value
FROM state
WHERE state.id = ANY ($1) AND state.value IS NULL
ORDER BY id;

-- name: state_raise_floors
-- Tombstones that go leave the highest version of their scope behind; $1 has their rows and changes.
-- Differs: JSON is opened in other words; the greater of two numbers is greatest.
INSERT INTO state_floors (scope, version)
SELECT state.scope, max(state.version)
FROM json_array_elements(CAST($1 AS json)) AS gone
JOIN state ON state.id = (gone->>0)::bigint
WHERE state.value IS NULL AND state.change = (gone->>1)::bigint
GROUP BY state.scope
ON CONFLICT (scope) DO UPDATE SET version = greatest(state_floors.version, excluded.version);

-- name: state_remove_tombstones
-- Tombstones that are archived go, unless they were written since; $1 has their rows and changes.
-- Differs: JSON is opened in other words.
DELETE FROM state
USING json_array_elements(CAST($1 AS json)) AS gone
WHERE state.id = (gone->>0)::bigint AND state.value IS NULL AND state.change = (gone->>1)::bigint
RETURNING state.id;

-- name: state_expired
-- What has expired, of whatever scope. Differs: nobody changes it until the commit.
SELECT value FROM counters WHERE name = 'change' FOR UPDATE;
SELECT scope, key FROM state WHERE expires IS NOT NULL AND expires <= $1 ORDER BY expires LIMIT $2;

-- name: state_export
-- Entries and tombstones by their rows. Differs: lists are arrays.
SELECT scope, state.key, state.type, version, checksum, expires, author, created, updated, state.value
FROM state
WHERE state.id = ANY ($1)
ORDER BY id;

-- name: state_of_scopes
-- The rows of scopes, and how large they are. Differs: lists are arrays.
SELECT state.id, 200 + coalesce(length(state.value), 0) FROM state WHERE state.scope = ANY ($1) ORDER BY id;
