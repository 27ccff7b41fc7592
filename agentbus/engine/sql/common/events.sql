-- name: event_insert
-- One line of the audit trail.
INSERT INTO events (at, kind, subject_kind, subject, actor, facts) VALUES ($1, $2, $3, $4, $5, $6);

-- name: event_page
-- The audit trail after an event, in its order.
SELECT id, at, kind, subject_kind, subject, actor, facts FROM events WHERE id > $1 ORDER BY id LIMIT $2;

-- name: event_page_of_kind
-- The events of one kind after an event.
SELECT id, at, kind, subject_kind, subject, actor, facts FROM events
WHERE kind = $1 AND id > $2
ORDER BY id
LIMIT $3;

-- name: event_page_of_subject
-- What happened to one subject after an event; a NULL kind takes all.
SELECT id, at, kind, subject_kind, subject, actor, facts FROM events
WHERE subject_kind = $1 AND subject = $2 AND id > $3 AND (CAST($4 AS text) IS NULL OR kind = $4)
ORDER BY id
LIMIT $5;

-- name: event_last
-- The newest event.
SELECT coalesce(max(id), 0) FROM events;

-- name: event_ages
-- The audit trail after an event, as retention sees it.
SELECT id, at, length(facts) + 200, kind FROM events WHERE id > $1 ORDER BY id LIMIT $2;

-- name: event_restore
-- An event from an archive.
INSERT INTO events (id, at, kind, subject_kind, subject, actor, facts) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: event_same
-- Whether an event is the one that an archive has.
SELECT 1 FROM events WHERE id = $1 AND at = $2 AND kind = $3 AND subject = $4;

-- name: event_after
-- Events in the order of their ids, after one and up to another.
SELECT id, 200 + length(facts) FROM events WHERE id > $1 AND id <= $2 ORDER BY id LIMIT $3;
