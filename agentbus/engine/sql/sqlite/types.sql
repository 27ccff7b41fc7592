-- name: type_known
-- The types among these that exist, with their schemas. Differs: a join, because IN copies the list into a b-tree
-- first.
SELECT vocabulary.name, vocabulary.schema
FROM json_each($2) AS wanted CROSS JOIN vocabulary ON vocabulary.kind = $1 AND vocabulary.name = wanted.value;
