-- name: document_archive
-- Versions of documents with all that they have. Differs: lists by json_each.
SELECT session, name, version, checksum, author, created, documents.value
FROM json_each($1) AS wanted CROSS JOIN documents ON documents.id = wanted.value;

-- name: document_names
-- The documents that sessions have. Differs: lists by json_each.
SELECT DISTINCT documents.session, documents.name
FROM json_each($1) AS wanted CROSS JOIN documents ON documents.session = wanted.value;

-- name: document_remove
-- Versions of documents that are archived go, once their session has ended. Differs: lists by json_each.
DELETE FROM documents
WHERE id IN (SELECT value FROM json_each($1))
    AND EXISTS (SELECT 1 FROM sessions WHERE sessions.id = documents.session AND sessions.ended IS NOT NULL)
RETURNING id;
