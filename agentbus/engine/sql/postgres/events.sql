-- name: event_insert
-- Append an event to the audit log. Differs: a lock until the commit keeps the order of ids equal to the order of
-- commits.
SELECT pg_advisory_xact_lock(hashtextextended('agentbus events ' || current_schema(), 0));
INSERT INTO events (at, kind, subject_kind, subject, actor, facts) VALUES ($1, $2, $3, $4, $5, $6);

-- name: event_restore
-- Insert an event of an archive. Differs: the sequence must continue after its id.
WITH restored AS (
    INSERT INTO events (id, at, kind, subject_kind, subject, actor, facts) VALUES ($1, $2, $3, $4, $5, $6, $7)
    ON CONFLICT DO NOTHING
    RETURNING id
)
SELECT id FROM restored WHERE identity_raise('events', id);
