-- name: document_insert
-- Insert the next version of a document. Versions never repeat: a rollback that removes the newest leaves its number
-- behind, and an import may bring older ones back.
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

-- name: document_trim
-- Delete the versions of a document up to this one.
DELETE FROM documents WHERE session = $1 AND name = $2 AND version <= $3;

-- name: document_floor
-- Remember the last version of a document that is about to be deleted.
INSERT INTO document_floors (session, name, version)
SELECT session, name, max(version) FROM documents WHERE session = $1 AND name = $2 GROUP BY session, name
ON CONFLICT (session, name) DO UPDATE SET version = excluded.version;

-- name: document_forget
-- Delete a document that did not exist at the time that its session returns to.
DELETE FROM documents WHERE session = $1 AND name = $2;

-- name: document_newest
-- The documents of a session with the values of their newest versions.
SELECT documents.name, documents.version, documents.author, documents.created, documents.checksum, documents.value
FROM (SELECT name, max(version) AS version FROM documents WHERE session = $1 GROUP BY name) AS newest
JOIN documents ON documents.session = $1 AND documents.name = newest.name AND documents.version = newest.version
ORDER BY documents.name;

-- name: document_copy
-- Copy the newest versions of a session's documents as the first versions of another session.
INSERT INTO documents (session, name, version, checksum, author, created, value)
SELECT $1, documents.name, 1, documents.checksum, documents.author, $2, documents.value
FROM (SELECT name, max(version) AS version FROM documents WHERE session = $3 GROUP BY name) AS newest
JOIN documents ON documents.session = $3 AND documents.name = newest.name AND documents.version = newest.version;

-- name: document_versions
-- The newest versions of a document, or the version $3.
SELECT id, session, name, version, author, created, checksum, value
FROM documents
WHERE session = $1 AND name = $2 AND (CAST($3 AS bigint) IS NULL OR version = $3)
ORDER BY version DESC
LIMIT $4;

-- name: document_list
-- The documents of a session, each with its newest version.
SELECT documents.name, documents.version, documents.author, documents.created
FROM (SELECT name, max(version) AS version FROM documents WHERE session = $1 GROUP BY name) AS newest
JOIN documents ON documents.session = $1 AND documents.name = newest.name AND documents.version = newest.version
ORDER BY documents.name;

-- name: document_sizes
-- The versions of all documents of a session, with an estimate of their size.
SELECT id, 300 + length(value) FROM documents WHERE session = $1 ORDER BY id;

-- name: document_restore
-- Insert a version of a document of an archive.
INSERT INTO documents (session, name, version, checksum, author, created, value)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: document_same
-- Whether a version of a document is the one in an archive.
SELECT 1 FROM documents WHERE session = $1 AND name = $2 AND version = $3 AND checksum = $4;

-- name: document_payloads
-- Stored versions of documents before the cursor, newest first, with their checksums.
SELECT id, checksum, value, version, name, session FROM documents WHERE id < $1 ORDER BY id DESC LIMIT $2;

-- name: document_after
-- Versions of documents after one row and up to another, ordered by row.
SELECT id, 300 + length(value) FROM documents WHERE id > $1 AND id <= $2 ORDER BY id LIMIT $3;

-- name: document_alike
-- Whether any version of a document has this content.
SELECT 1 FROM documents WHERE session = $1 AND name = $2 AND checksum = $3 LIMIT 1;

-- name: document_archive
-- Versions of documents for an archive, ordered by row.
SELECT session, name, version, checksum, author, created, documents.value
FROM /* rows: documents.id $1 */
/* postgres: ORDER BY id */;

-- name: document_names
-- The documents of sessions.
SELECT DISTINCT documents.session, documents.name
FROM /* rows: documents.session $1 */;

-- name: document_remove
-- Delete archived versions of documents whose session has ended.
DELETE FROM documents
WHERE id /* in: $1 */
    AND EXISTS (SELECT 1 FROM sessions WHERE sessions.id = documents.session AND sessions.ended IS NOT NULL)
RETURNING id;
