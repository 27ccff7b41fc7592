-- name: type_names
-- All types of a kind.
SELECT name FROM vocabulary WHERE kind = $1 ORDER BY name;

-- name: type_get
-- One type.
SELECT builtin, description, schema FROM vocabulary WHERE kind = $1 AND name = $2;

-- name: type_list
-- All types; a NULL kind matches all.
SELECT kind, name, builtin, description, schema, created FROM vocabulary
WHERE (CAST($1 AS text) IS NULL OR kind = $1) ORDER BY kind, name;

-- name: type_define
-- Insert a type, or change its description and schema.
INSERT INTO vocabulary (kind, name, description, schema, created) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (kind, name) DO UPDATE SET description = excluded.description, schema = excluded.schema;
