-- name: type_known
-- Which of these types are in the vocabulary, and what their payloads must fit. Differs: lists by json_each.
SELECT vocabulary.name, vocabulary.schema
FROM json_each($2) AS wanted CROSS JOIN vocabulary ON vocabulary.kind = $1 AND vocabulary.name = wanted.value;
