-- name: state_by_key
-- Entries and tombstones without their values; $1 has a list of keys for each scope. Differs: locks the counter of
-- changes until the commit, so that the result stays current.
SELECT value FROM counters WHERE name = 'change' FOR UPDATE;
SELECT state.scope, state.key, state.id, state.type, state.version, state.expires, state.created, state.checksum
FROM json_each(CAST($1 AS json)) AS scopes
CROSS JOIN LATERAL json_array_elements_text(scopes.value) AS wanted (key)
JOIN state ON state.scope = scopes.key AND state.key = wanted.key;

-- name: state_values
-- The values of entries; $1 has a list of keys for each scope. Differs: JSON functions.
SELECT state.scope, state.key, state.value
FROM json_each(CAST($1 AS json)) AS scopes
CROSS JOIN LATERAL json_array_elements_text(scopes.value) AS wanted (key)
JOIN state ON state.scope = scopes.key AND state.key = wanted.key
WHERE state.value IS NOT NULL;

-- name: state_there
-- All entries of these scopes, in the order of the list. Differs: WITH ORDINALITY.
SELECT state.scope, state.key, state.type, state.expires, state.checksum, state.author, state.value
FROM unnest($1::text[]) WITH ORDINALITY AS wanted (scope, position)
JOIN state ON state.scope = wanted.scope
WHERE state.value IS NOT NULL AND (state.expires IS NULL OR state.expires > $2)
ORDER BY wanted.position, state.key;

-- name: state_archive
-- The entries of scopes after a change, for an archive; $1 has pairs of scope and change. Differs: JSON operators.
SELECT scope, state.key, state.type, version, checksum, expires, author, created, updated, state.value
FROM json_array_elements(CAST($1 AS json)) AS wanted
JOIN state ON state.scope = wanted->>0 AND state.change > (wanted->>1)::bigint
WHERE state.value IS NOT NULL
ORDER BY scope, key;

-- name: state_raise_floors
-- Store the highest version of tombstones that are about to be deleted, by scope; $1 has pairs of row and change.
-- Differs: JSON operators, and greatest.
INSERT INTO state_floors (scope, version)
SELECT state.scope, max(state.version)
FROM json_array_elements(CAST($1 AS json)) AS gone
JOIN state ON state.id = (gone->>0)::bigint
WHERE state.value IS NULL AND state.change = (gone->>1)::bigint
GROUP BY state.scope
ON CONFLICT (scope) DO UPDATE SET version = greatest(state_floors.version, excluded.version);

-- name: state_remove_tombstones
-- Delete archived tombstones, unless they changed since; $1 has pairs of row and change. Differs: JSON operators.
DELETE FROM state
USING json_array_elements(CAST($1 AS json)) AS gone
WHERE state.id = (gone->>0)::bigint AND state.value IS NULL AND state.change = (gone->>1)::bigint
RETURNING state.id;

-- name: state_expired
-- Expired entries of any scope. Differs: locks them until the commit.
SELECT value FROM counters WHERE name = 'change' FOR UPDATE;
SELECT scope, key FROM state WHERE expires IS NOT NULL AND expires <= $1 ORDER BY expires LIMIT $2;
