-- name: event_archive
-- Events with all that they have. Differs: lists by json_each.
SELECT events.id, at, kind, subject_kind, subject, actor, facts
FROM json_each($1) AS wanted CROSS JOIN events ON events.id = wanted.value;

-- name: event_remove
-- Events that are archived go. Differs: lists by json_each.
DELETE FROM events WHERE id IN (SELECT value FROM json_each($1)) RETURNING id;

-- name: event_of_subjects
-- The events of subjects of a kind, and how large they are. Differs: lists by json_each.
SELECT events.id, 200 + length(facts)
FROM json_each($2) AS wanted CROSS JOIN events ON subject_kind = $1 AND subject = wanted.value;
