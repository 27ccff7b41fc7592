-- name: event_archive
-- Events with all that they have. Differs: lists are arrays.
SELECT events.id, at, kind, subject_kind, subject, actor, facts
FROM events
WHERE events.id = ANY ($1)
ORDER BY id;

-- name: event_remove
-- Events that are archived go. Differs: lists are arrays.
DELETE FROM events WHERE id = ANY ($1) RETURNING id;

-- name: event_insert
-- One line of the audit trail. Differs: from here to the commit nobody else writes one, so that the order of the ids is the
-- order of the commits.
SELECT pg_advisory_xact_lock(hashtextextended('agentbus events ' || current_schema(), 0));
INSERT INTO events (at, kind, subject_kind, subject, actor, facts) VALUES ($1, $2, $3, $4, $5, $6);

-- name: event_restore
-- An event from an archive. Differs: ids that are given out later must be others.
WITH restored AS (
    INSERT INTO events (id, at, kind, subject_kind, subject, actor, facts) VALUES ($1, $2, $3, $4, $5, $6, $7)
    ON CONFLICT DO NOTHING
    RETURNING id
)
SELECT id FROM restored WHERE identity_raise('events', id);

-- name: event_of_subjects
-- The events of subjects of a kind, and how large they are. Differs: lists are arrays.
SELECT events.id, 200 + length(facts) FROM events WHERE subject_kind = $1 AND subject = ANY ($2) ORDER BY id;
