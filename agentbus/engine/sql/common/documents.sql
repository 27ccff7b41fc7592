-- name: document_insert
-- The next version of a document. The newest is not removed but by a rollback, which leaves its version behind: versions go
-- on counting, also where an import brought older ones back.
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
-- Remove the versions of a document up to this one.
DELETE FROM documents WHERE session = $1 AND name = $2 AND version <= $3;

-- name: document_floor
-- The last version of a document that is about to be removed.
INSERT INTO document_floors (session, name, version)
SELECT session, name, max(version) FROM documents WHERE session = $1 AND name = $2 GROUP BY session, name
ON CONFLICT (session, name) DO UPDATE SET version = excluded.version;

-- name: document_forget
-- A document was not there at the time that its session goes back to.
DELETE FROM documents WHERE session = $1 AND name = $2;

-- name: document_newest
-- The documents of a session with the values of their newest versions.
SELECT documents.name, documents.version, documents.author, documents.created, documents.checksum, documents.value
FROM (SELECT name, max(version) AS version FROM documents WHERE session = $1 GROUP BY name) AS newest
JOIN documents ON documents.session = $1 AND documents.name = newest.name AND documents.version = newest.version
ORDER BY documents.name;

-- name: document_copy
-- The newest versions of a session's documents become the first ones of another's.
INSERT INTO documents (session, name, version, checksum, author, created, value)
SELECT $1, documents.name, 1, documents.checksum, documents.author, $2, documents.value
FROM (SELECT name, max(version) AS version FROM documents WHERE session = $3 GROUP BY name) AS newest
JOIN documents ON documents.session = $3 AND documents.name = newest.name AND documents.version = newest.version;

-- name: document_versions
-- The newest versions of a document, or ($3) one of them.
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
-- The versions of all documents of a session, and how large they are.
SELECT id, 300 + length(value) FROM documents WHERE session = $1 ORDER BY id;

-- name: document_restore
-- A version of a document from an archive.
INSERT INTO documents (session, name, version, checksum, author, created, value)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: document_same
-- Whether a version of a document is the one that an archive has.
SELECT 1 FROM documents WHERE session = $1 AND name = $2 AND version = $3 AND checksum = $4;

-- name: document_payloads
-- Stored versions of documents with their checksums, newest first, before the cursor.
SELECT id, checksum, value, version, name, session FROM documents WHERE id < $1 ORDER BY id DESC LIMIT $2;

-- name: document_after
-- Versions of documents in the order of their rows, after one and up to another.
SELECT id, 300 + length(value) FROM documents WHERE id > $1 AND id <= $2 ORDER BY id LIMIT $3;

-- name: document_alike
-- Whether any version of a document has this content.
SELECT 1 FROM documents WHERE session = $1 AND name = $2 AND checksum = $3 LIMIT 1;
