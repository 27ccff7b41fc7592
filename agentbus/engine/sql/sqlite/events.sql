-- name: event_archive
-- Events with all that they have. Differs: lists by json_each.
SELECT events.id, at, kind, subject_kind, subject, actor, facts
FROM json_each($1) AS wanted CROSS JOIN events ON events.id = wanted.value;

-- name: event_remove
-- Events that are archived go. Differs: lists by json_each.
DELETE FROM events WHERE id IN (SELECT value FROM json_each($1)) RETURNING id;
