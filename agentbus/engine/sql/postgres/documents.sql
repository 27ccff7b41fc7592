-- name: document_archive
-- Versions of documents with all that they have. Differs: lists are arrays.
SELECT session, name, version, checksum, author, created, documents.value
FROM documents
WHERE documents.id = ANY ($1)
ORDER BY id;

-- name: document_names
-- The documents that sessions have. Differs: lists are arrays.
SELECT DISTINCT documents.session, documents.name
FROM documents
WHERE documents.session = ANY ($1);

-- name: document_remove
-- Versions of documents that are archived go, once their session has ended. Differs: lists are arrays.
DELETE FROM documents
WHERE id = ANY ($1)
    AND EXISTS (SELECT 1 FROM sessions WHERE sessions.id = documents.session AND sessions.ended IS NOT NULL)
RETURNING id;

-- name: document_insert
-- The next version of a document. Differs: two transactions that save one document take turns.
SELECT pg_advisory_xact_lock(
    hashtextextended('agentbus document ' || current_schema() || '/' || CAST($1 AS text) || '/' || CAST($2 AS text), 0)
);
INSERT INTO documents (session, name, version, checksum, author, created, value)
VALUES (
    $1, $2,
    1 + coalesce((
        SELECT max(version) FROM (
            SELECT max(version) AS version FROM documents WHERE session = $1 AND name = $2
            UNION ALL SELECT version FROM document_floors WHERE session = $1 AND name = $2
        ) AS given
    ), 0),
    $3, $4, $5, $6
)
RETURNING id, version;
