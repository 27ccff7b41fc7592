-- name: state_by_key
-- Entries and tombstones without their values; $1 has a list of keys for each scope. Differs: json_each.
SELECT state.scope, state.key, state.id, state.type, state.version, state.expires, state.created, state.checksum
FROM json_each($1) AS scopes CROSS JOIN json_each(scopes.value) AS wanted
CROSS JOIN state ON state.scope = scopes.key AND state.key = wanted.value;

-- name: state_values
-- The values of entries; $1 has a list of keys for each scope. Differs: json_each.
SELECT state.scope, state.key, state.value
FROM json_each($1) AS scopes CROSS JOIN json_each(scopes.value) AS wanted
CROSS JOIN state ON state.scope = scopes.key AND state.key = wanted.value
WHERE state.value IS NOT NULL;

-- name: state_there
-- All entries of these scopes, in the order of the list. Differs: json_each.
SELECT state.scope, state.key, state.type, state.expires, state.checksum, state.author, state.value
FROM json_each($1) AS wanted CROSS JOIN state ON state.scope = wanted.value
WHERE state.value IS NOT NULL AND (state.expires IS NULL OR state.expires > $2)
ORDER BY wanted.key, state.key;

-- name: state_archive
-- The entries of scopes after a change, for an archive; $1 has pairs of scope and change. Differs: json_extract.
SELECT scope, state.key, state.type, version, checksum, expires, author, created, updated, state.value
FROM json_each($1) AS wanted CROSS JOIN state
    ON state.scope = json_extract(wanted.value, '$[0]') AND state.change > json_extract(wanted.value, '$[1]')
WHERE state.value IS NOT NULL;

-- name: state_raise_floors
-- Store the highest version of tombstones that are about to be deleted, by scope; $1 has pairs of row and change.
-- Differs: json_extract, and max of two numbers.
INSERT INTO state_floors (scope, version)
SELECT scope, max(version)
FROM json_each($1) AS gone CROSS JOIN state ON state.id = json_extract(gone.value, '$[0]')
WHERE state.value IS NULL AND change = json_extract(gone.value, '$[1]')
GROUP BY scope
ON CONFLICT (scope) DO UPDATE SET version = max(version, excluded.version);

-- name: state_remove_tombstones
-- Delete archived tombstones, unless they changed since; $1 has pairs of row and change. Differs: json_extract.
DELETE FROM state
WHERE id IN (
        SELECT state.id
        FROM json_each($1) AS gone CROSS JOIN state ON state.id = json_extract(gone.value, '$[0]')
        WHERE state.value IS NULL AND change = json_extract(gone.value, '$[1]')
    )
RETURNING id;
