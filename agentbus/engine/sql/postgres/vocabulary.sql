-- name: type_known
-- Which of these types are in the vocabulary, and what their payloads must fit. Differs: lists are arrays.
SELECT vocabulary.name, vocabulary.schema
FROM vocabulary
WHERE vocabulary.kind = $1 AND vocabulary.name = ANY ($2);
