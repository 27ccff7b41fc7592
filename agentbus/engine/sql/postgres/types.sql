-- name: type_known
-- The types among these that exist, with their schemas. Differs: SQLite needs a join.
SELECT vocabulary.name, vocabulary.schema
FROM vocabulary
WHERE vocabulary.kind = $1 AND vocabulary.name = ANY ($2);
