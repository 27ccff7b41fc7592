-- name: session_status
-- The status of a session.
SELECT status FROM sessions WHERE id = $1;

-- name: session_insert
-- Start a session.
INSERT INTO sessions (id, operation, milestone, process, expected, metadata, created, updated)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8);

-- name: session_owner
-- A session and the process that owns it.
SELECT sessions.operation, sessions.milestone, sessions.status, sessions.expected, sessions.process, processes.status,
    processes.host, processes.pid, processes.started, processes.bell
FROM sessions LEFT JOIN processes ON processes.id = sessions.process
WHERE sessions.id = $1;

-- name: session_continue
-- Continue a session in another process; NULL keeps the stored value. Earlier failures no longer count.
UPDATE sessions SET
    status = 'active', process = $1, milestone = coalesce($2, milestone), expected = $3,
    metadata = coalesce($4, metadata), error = NULL, troubled = 0, resume_by = NULL, updated = $5
WHERE id = $6;

-- name: session_change
-- Change the status of a session. Once it is active again, earlier failures no longer count.
UPDATE sessions SET
    status = $1, error = $2, updated = $3, ended = $4, process = $5, resume_by = NULL,
    troubled = CASE WHEN $1 = 'active' THEN 0 ELSE troubled END
WHERE id = $6;

-- name: session_disown
-- Note that no process is in the block of a session.
UPDATE sessions SET process = NULL WHERE id = $1;

-- name: session_resume
-- Resume an interrupted session when an agent of it registers.
UPDATE sessions SET status = 'active', error = NULL, updated = $1 WHERE id = $2 AND status = 'interrupted'
RETURNING id;

-- name: session_attended
-- Note that an agent came to a resumed session.
UPDATE sessions SET resume_by = NULL WHERE id = $1 AND resume_by IS NOT NULL;

-- name: session_await
-- Set the time (awake) by which an agent must come to a session.
UPDATE sessions SET resume_by = $1 WHERE id = $2;

-- name: session_forget_deadlines
-- Clear deadlines after a reboot: awake time starts again, and the agents that were expected are gone.
UPDATE sessions SET resume_by = 0 WHERE ended IS NULL AND resume_by IS NOT NULL;

-- name: session_reclaim
-- Resume interrupted sessions whose owner is alive after all, except those of which an agent failed.
UPDATE sessions SET status = 'active', error = NULL, updated = $1
WHERE ended IS NULL AND process = $2 AND status = 'interrupted' AND troubled = 0
RETURNING id;

-- name: session_reason
-- Store the reason of an interruption.
UPDATE sessions SET error = $1 WHERE id = $2;

-- name: session_expected
-- The agents of a session that have not registered.
SELECT id FROM agents WHERE session = $1 AND status IN ('pending', 'spawning') ORDER BY id;

-- name: session_progress
-- Record the progress of a session.
UPDATE sessions SET progress = $1, updated = $2 WHERE id = $3 AND ended IS NULL RETURNING id;

-- name: session_rewind
-- Reset the progress of a session to an earlier one.
UPDATE sessions SET progress = $1, updated = $2 WHERE id = $3;

-- name: session_touch
-- Record that something in a session changed.
UPDATE sessions SET updated = $1 WHERE id = $2;

-- name: session_get
-- One session.
SELECT id, operation, milestone, status, progress, process, expected, metadata, created, updated, ended, error,
    status = 'active' AND troubled = 1
        AND EXISTS (SELECT 1 FROM agents WHERE agents.session = sessions.id AND agents.status = 'failed')
FROM sessions WHERE id = $1;

-- name: session_troubles
-- Active sessions of which an agent failed, whose owner is gone, or to which no agent came by $1 (awake): the number of
-- live and of failed agents, whether the owner is gone, and how many of the live agents are only expected.
SELECT sessions.id,
    (SELECT count(*) FROM agents
     WHERE agents.session = sessions.id AND agents.status IN ('running', 'suspect', 'spawning')),
    (SELECT count(*) FROM agents WHERE agents.session = sessions.id AND agents.status = 'failed'),
    CASE WHEN owners.status <> 'live' THEN 1 ELSE 0 END,
    (SELECT count(*) FROM agents WHERE agents.session = sessions.id AND agents.status = 'spawning')
FROM sessions LEFT JOIN processes AS owners ON owners.id = sessions.process
WHERE sessions.status = 'active' AND sessions.ended IS NULL
    AND (sessions.troubled = 1 OR owners.status <> 'live' OR (sessions.process IS NULL AND sessions.resume_by <= $1))
ORDER BY sessions.id;

-- name: session_overdue
-- Active sessions that were resumed, and to which no agent came in time (awake).
SELECT id FROM sessions WHERE ended IS NULL AND status = 'active' AND process IS NULL AND resume_by <= $1;

-- name: session_counts
-- The number of agents of a session of each status.
SELECT status, count(*) FROM agents WHERE session = $1 GROUP BY status;

-- name: session_recoverable
-- Interrupted sessions, active ones of which an agent failed, and those without a live agent while work waits: the
-- number of agents, of live (not only expected) and of failed ones; the last change of the session, its agents and its
-- documents (wall); and the last call of a live agent (awake).
SELECT sessions.id, sessions.milestone, sessions.operation, sessions.status, sessions.error,
    (SELECT count(*) FROM agents WHERE agents.session = sessions.id),
    (SELECT count(*) FROM agents
     WHERE agents.session = sessions.id AND agents.status IN ('running', 'suspect')),
    (SELECT count(*) FROM agents WHERE agents.session = sessions.id AND agents.status = 'failed'),
    sessions.updated,
    (SELECT max(agents.updated) FROM agents WHERE agents.session = sessions.id),
    (SELECT max(documents.created) FROM documents WHERE documents.session = sessions.id),
    (SELECT max(agents.last_call) FROM agents
     WHERE agents.session = sessions.id AND agents.status IN ('running', 'suspect', 'spawning'))
FROM sessions
WHERE sessions.ended IS NULL AND sessions.status IN ('active', 'interrupted')
    AND (sessions.status = 'interrupted' OR (sessions.troubled = 1
        AND EXISTS (SELECT 1 FROM agents WHERE agents.session = sessions.id AND agents.status = 'failed'))
    OR (NOT EXISTS (SELECT 1 FROM processes WHERE processes.id = sessions.process AND processes.status = 'live')
        AND NOT EXISTS (
            SELECT 1 FROM agents
            WHERE agents.session = sessions.id AND agents.status IN ('pending', 'running', 'suspect', 'spawning')
        )
        AND EXISTS (
            SELECT 1 FROM agents WHERE agents.session = sessions.id AND (
                EXISTS (SELECT 1 FROM messages WHERE messages.mailbox = agents.mailbox AND messages.status = 'queued')
                OR EXISTS (SELECT 1 FROM messages WHERE messages.mailbox = agents.mailbox AND messages.status = 'scheduled')
            )
        )))
ORDER BY sessions.updated DESC, sessions.id;

-- name: session_stale
-- Open sessions without activity since $1 (wall) and $2 (awake), the longest silent first. An agent that announced
-- silence until later than $3 (awake) is active; a liveness verdict does not count as activity.
SELECT id, operation, milestone, status, progress, process, expected, metadata, created, updated, ended, error,
    status = 'active' AND troubled = 1
        AND EXISTS (SELECT 1 FROM agents WHERE agents.session = sessions.id AND agents.status = 'failed')
FROM sessions
WHERE ended IS NULL AND status IN ('active', 'paused', 'interrupted') AND updated <= $1
    AND NOT EXISTS (
        SELECT 1 FROM agents
        WHERE agents.session = sessions.id AND (
            (agents.updated > $1 AND agents.evidence IS NULL)
            OR (agents.status IN ('running', 'suspect', 'spawning') AND (agents.last_call > $2 OR agents.busy_until > $3))
        )
    )
    AND NOT EXISTS (SELECT 1 FROM documents WHERE documents.session = sessions.id AND documents.created > $1)
    AND NOT EXISTS (SELECT 1 FROM participants WHERE participants.session = sessions.id AND participants.finished > $1)
    AND NOT EXISTS (SELECT 1 FROM state WHERE state.scope = 'session:' || sessions.id AND state.updated > $1)
    AND NOT EXISTS (
        SELECT 1 FROM checkpoints
        WHERE checkpoints.owner_kind IN ('session', 'composite') AND checkpoints.owner = sessions.id
            AND checkpoints.created > $1
    )
ORDER BY updated, id;

-- name: participant_insert
-- Add a participant to a meeting.
INSERT INTO participants (session, meeting, member, position, created) VALUES ($1, $2, $3, $4, $5);

-- name: participant_list
-- The participants of a meeting in order, with the results of those that have finished.
SELECT member, finished, result, checksum FROM participants WHERE session = $1 AND meeting = $2 ORDER BY position;

-- name: participant_get
-- The result of a participant, if it has finished.
SELECT member, finished, result, checksum FROM participants WHERE session = $1 AND meeting = $2 AND member = $3;

-- name: participant_finish
-- Finish a participant.
UPDATE participants SET finished = $1, result = $2, checksum = $3
WHERE session = $4 AND meeting = $5 AND member = $6;

-- name: participant_of_session
-- The participants of each meeting of a session.
SELECT meeting, member, position, created, finished, checksum, result FROM participants
WHERE session = $1
ORDER BY meeting, position;

-- name: participant_progress
-- The participants of each meeting of a session, with the time at which they finished.
SELECT meeting, member, finished FROM participants WHERE session = $1 ORDER BY meeting, position;

-- name: participant_clear
-- Delete the participants of all meetings of a session.
DELETE FROM participants WHERE session = $1;

-- name: participant_put
-- Insert a participant of a snapshot, finished or not.
INSERT INTO participants (session, meeting, member, position, created, finished, checksum, result)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8);

-- name: session_size
-- The total length of the values of a session ($2: its scope) at a time. Its composite checkpoint is longer.
SELECT CAST(
    coalesce((
        SELECT sum(length(documents.value))
        FROM (SELECT name, max(version) AS version FROM documents WHERE session = $1 GROUP BY name) AS newest
        JOIN documents ON documents.session = $1 AND documents.name = newest.name AND documents.version = newest.version
    ), 0)
    + coalesce((SELECT sum(length(value)) FROM state WHERE scope = $2 AND (expires IS NULL OR expires > $3)), 0)
    + coalesce((
        SELECT sum(length(state.value)) FROM agents JOIN state ON state.scope = agents.id
        WHERE agents.session = $1 AND (state.expires IS NULL OR state.expires > $3)
    ), 0)
    + coalesce((SELECT sum(length(result)) FROM participants WHERE session = $1), 0)
AS bigint);

-- name: recovery_beyond
-- Return a row if a summary has to read more than $1 agents that did not complete, or interruptions.
SELECT 1 FROM agents WHERE status IN ('pending', 'spawning', 'running', 'suspect', 'failed', 'stopped')
UNION ALL
SELECT 1 FROM events WHERE kind = 'session_interrupted'
LIMIT 1 OFFSET $1;

-- name: recovery_interrupted
-- The interrupted sessions, the last interrupted first.
SELECT id FROM sessions WHERE ended IS NULL AND status = 'interrupted' ORDER BY updated DESC, id LIMIT $1;

-- name: recovery_agents
-- Unfinished agents after a cursor, and failed or stopped agents of open sessions, ordered by id.
SELECT /* columns: agent */
FROM agents
WHERE id > $1 AND (
    status IN ('pending', 'spawning', 'running', 'suspect')
    OR (status IN ('failed', 'stopped') AND session IN (
        SELECT id FROM sessions WHERE ended IS NULL AND status IN ('active', 'paused', 'interrupted')
    ))
)
ORDER BY id
LIMIT $2;

-- name: recovery_clearable
-- Suspect agents, and failed agents of open sessions.
SELECT id, status, error FROM agents
WHERE status IN ('suspect', 'failed') AND (
    status = 'suspect'
    OR session IN (SELECT id FROM sessions WHERE ended IS NULL AND status IN ('active', 'paused', 'interrupted'))
)
ORDER BY status, id
LIMIT $1;

-- name: recovery_history
-- All interruptions, with the event that resumed or ended the session after each.
SELECT cut.at, next.kind, next.at, final.kind
FROM events AS cut
LEFT JOIN events AS next ON next.id = (
    SELECT min(id) FROM events
    WHERE subject_kind = 'session' AND subject = cut.subject AND id > cut.id
        AND kind IN ('session_continued', 'session_completed', 'session_failed')
)
LEFT JOIN events AS final ON final.id = (
    SELECT min(id) FROM events
    WHERE subject_kind = 'session' AND subject = cut.subject AND id > next.id
        AND kind IN ('session_completed', 'session_failed', 'session_interrupted')
)
WHERE cut.kind = 'session_interrupted'
ORDER BY cut.id;

-- name: session_expendable
-- The first session after a cursor that ended before $2, or failed before $3, with the size of its participants and
-- state.
SELECT id, ended,
    500 + coalesce((SELECT sum(200 + length(coalesce(result, ''))) FROM participants WHERE session = sessions.id), 0)
    + coalesce((SELECT sum(200 + length(value)) FROM state WHERE scope = 'session:' || sessions.id), 0)
FROM sessions
WHERE id > $1 AND ended IS NOT NULL AND (ended <= $2 OR (status = 'failed' AND ended <= $3))
ORDER BY id
LIMIT 1;

-- name: session_members
-- The agents of a session.
SELECT id, status FROM agents WHERE session = $1;

-- name: session_ended
-- The time at which a session ended.
SELECT ended FROM sessions WHERE id = $1;

-- name: session_left
-- The time at which a session ended, and whether rows are left that must be deleted before it.
SELECT ended,
    CASE WHEN EXISTS (SELECT 1 FROM agents WHERE agents.session = sessions.id)
        OR EXISTS (SELECT 1 FROM documents WHERE documents.session = sessions.id)
        OR EXISTS (SELECT 1 FROM checkpoints WHERE owner_kind IN ('session', 'composite') AND owner = sessions.id)
        OR EXISTS (SELECT 1 FROM tasks WHERE tasks.session = sessions.id)
    THEN 1 ELSE 0 END
FROM sessions WHERE id = $1;

-- name: session_delete
-- Delete a session without remaining rows.
DELETE FROM sessions WHERE id = $1;

-- name: session_restore
-- Insert an ended session of an archive.
INSERT INTO sessions (
    id, operation, milestone, status, progress, troubled, expected, metadata, error, created, updated, ended
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: session_same
-- Whether a session is the one in an archive.
SELECT 1 FROM sessions WHERE id = $1 AND created = $2;

-- name: participant_restore
-- Insert a participant of an archive.
INSERT INTO participants (session, meeting, member, position, created, finished, checksum, result)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT DO NOTHING
RETURNING member;

-- name: session_expecting
-- The newest completed or interrupted sessions that expected documents.
SELECT id, expected FROM sessions
WHERE status IN ('completed', 'interrupted') AND expected <> '{}'
ORDER BY created DESC, id DESC
LIMIT $1;

-- name: session_after
-- Sessions after a cursor, ordered by id, with an estimate of their size.
SELECT id, 500 + length(metadata) FROM sessions WHERE id > $1 ORDER BY id LIMIT $2;

-- name: session_made
-- The creation time and status of a session.
SELECT created, status FROM sessions WHERE id = $1;

-- name: session_trouble
-- Note that agents of these sessions failed.
UPDATE sessions SET troubled = 1
WHERE ended IS NULL AND id IN (SELECT session FROM agents WHERE id /* in: $1 */);

-- name: session_list_open
-- Open sessions of these statuses before the cursor ($1, $2), newest first; a NULL filter matches all. Does not read
-- ended sessions, which are the majority.
SELECT id, operation, milestone, status, progress, process, expected, metadata, created, updated, ended, error,
    status = 'active' AND troubled = 1
        AND EXISTS (SELECT 1 FROM agents WHERE agents.session = sessions.id AND agents.status = 'failed')
FROM sessions
WHERE ended IS NULL AND status /* in: $3 */
    AND (created, id) < ($1, $2)
    AND (CAST($4 AS text) IS NULL OR operation = $4)
    AND (CAST($5 AS text) IS NULL OR milestone = $5)
ORDER BY created DESC, id DESC
LIMIT $6;

-- name: recovery_dead_holders
-- Failed agents with waiting work, in a session that has not ended or in none. SQLite would read all agents in the
-- order of their ids after ANALYZE, therefore the index is named.
SELECT id FROM agents /* sqlite: INDEXED BY agents_by_status */
WHERE status = 'failed' AND (
    EXISTS (SELECT 1 FROM messages WHERE messages.mailbox = agents.mailbox AND messages.status = 'queued')
    OR EXISTS (SELECT 1 FROM messages WHERE messages.mailbox = agents.mailbox AND messages.status = 'scheduled')
    OR EXISTS (SELECT 1 FROM messages WHERE messages.mailbox = agents.mailbox AND messages.status = 'leased')
)
AND (session IS NULL OR EXISTS (SELECT 1 FROM sessions WHERE sessions.id = agents.session AND sessions.ended IS NULL))
ORDER BY id
LIMIT $1;

-- name: recovery_incomplete
-- Unfinished agents, and failed or stopped agents of open sessions. Counting them here would take twice as long as
-- fetching them. SQLite would read all agents that ever failed, therefore the order of the join is fixed.
SELECT status, type, session, created FROM agents WHERE status IN ('pending', 'spawning', 'running', 'suspect')
UNION ALL
SELECT agents.status, agents.type, agents.session, agents.created
FROM sessions /* sqlite: CROSS */ JOIN agents ON agents.session = sessions.id AND agents.status IN ('failed', 'stopped')
WHERE sessions.ended IS NULL AND sessions.status IN ('active', 'paused', 'interrupted');

-- name: session_archive
-- Ended sessions for an archive, ordered by id.
SELECT sessions.id, operation, milestone, status, progress, troubled, expected, metadata, error, created, updated, ended
FROM /* rows: sessions.id $1 */
/* postgres: ORDER BY id */;

-- name: participant_archive
-- The participants of sessions for an archive.
SELECT session, meeting, member, position, created, finished, checksum, result
FROM /* rows: participants.session $1 */
/* postgres: ORDER BY session, meeting, position */;

-- name: session_interrupt
-- Interrupt active sessions without a live agent: those of agents ($2), of processes ($3) and named ones ($4) of which
-- an agent failed, whose owner is gone, or that were resumed and to which no agent came by $5 (awake).
UPDATE sessions SET status = 'interrupted', updated = $1
WHERE id IN (
        SELECT session FROM agents WHERE id /* in: $2 */
        UNION SELECT id FROM sessions WHERE ended IS NULL AND process /* in: $3 */
        UNION SELECT /* list: $4 text */
    )
    AND status = 'active'
    AND NOT EXISTS (
        SELECT 1 FROM agents
        WHERE agents.session = sessions.id AND agents.status IN ('running', 'suspect', 'spawning')
    )
    AND (
        (troubled = 1 AND EXISTS (
            SELECT 1 FROM agents WHERE agents.session = sessions.id AND agents.status = 'failed'
        ))
        OR EXISTS (SELECT 1 FROM processes WHERE processes.id = sessions.process AND processes.status <> 'live')
        OR (process IS NULL AND resume_by <= $5)
    )
RETURNING id;
