-- name: event_insert
-- Append an event to the audit log.
INSERT INTO events (at, kind, subject_kind, subject, actor, facts) VALUES ($1, $2, $3, $4, $5, $6);

-- name: event_page
-- The audit log after an event, in order.
SELECT id, at, kind, subject_kind, subject, actor, facts FROM events WHERE id > $1 ORDER BY id LIMIT $2;

-- name: event_page_of_kind
-- The events of one kind after an event.
SELECT id, at, kind, subject_kind, subject, actor, facts FROM events
WHERE kind = $1 AND id > $2
ORDER BY id
LIMIT $3;

-- name: event_page_of_subject
-- The events of one subject after an event; a NULL kind matches all.
SELECT id, at, kind, subject_kind, subject, actor, facts FROM events
WHERE subject_kind = $1 AND subject = $2 AND id > $3 AND (CAST($4 AS text) IS NULL OR kind = $4)
ORDER BY id
LIMIT $5;

-- name: event_recent
-- The audit log before an event, newest first; a NULL kind, or a NULL subject, matches all.
SELECT id, at, kind, subject_kind, subject, actor, facts FROM events
WHERE id < $1 AND (CAST($2 AS text) IS NULL OR kind = $2)
    AND (CAST($3 AS text) IS NULL OR (subject_kind = $3 AND subject = $4))
ORDER BY id DESC
LIMIT $5;

-- name: event_last
-- The newest event.
SELECT coalesce(max(id), 0) FROM events;

-- name: event_ages
-- The audit log after an event, as retention reads it.
SELECT id, at, length(facts) + 200, kind FROM events WHERE id > $1 ORDER BY id LIMIT $2;

-- name: event_restore
-- Insert an event of an archive.
INSERT INTO events (id, at, kind, subject_kind, subject, actor, facts) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: event_same
-- Whether an event is the one in an archive.
SELECT 1 FROM events WHERE id = $1 AND at = $2 AND kind = $3 AND subject = $4;

-- name: event_after
-- Events after one id and up to another, ordered by id.
SELECT id, 200 + length(facts) FROM events WHERE id > $1 AND id <= $2 ORDER BY id LIMIT $3;

-- name: event_archive
-- Events for an archive, ordered by id.
SELECT events.id, at, kind, subject_kind, subject, actor, facts
FROM /* rows: events.id $1 */
/* postgres: ORDER BY id */;

-- name: event_remove
-- Delete archived events.
DELETE FROM events WHERE id /* in: $1 */ RETURNING id;

-- name: event_of_subjects
-- The events of these subjects, with an estimate of their size.
SELECT id, 200 + length(facts)
FROM events WHERE subject_kind = $1 AND subject /* in: $2 */
/* postgres: ORDER BY id */;
