-- name: document_insert
-- Insert the next version of a document. Differs: a lock serializes transactions that save the same document.
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
