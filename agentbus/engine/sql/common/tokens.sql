-- name: token_insert
-- Store a token of an HTTP client, by its hash.
INSERT INTO tokens (id, hash, role, operator, created, expires) VALUES ($1, $2, $3, $4, $5, $6);

-- name: token_find
-- The token with this hash.
SELECT id, role, operator, created, expires FROM tokens WHERE hash = $1;

-- name: token_list
-- All tokens, oldest first, without their hashes.
SELECT id, role, operator, created, expires FROM tokens ORDER BY created, id;

-- name: token_delete
-- Revoke a token.
DELETE FROM tokens WHERE id = $1 RETURNING id, role, operator, created, expires;
