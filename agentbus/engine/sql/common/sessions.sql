-- name: session_status
-- How a session stands.
SELECT status FROM sessions WHERE id = $1;

-- name: session_insert
-- A session begins.
INSERT INTO sessions (id, operation, milestone, process, expected, metadata, created, updated)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8);

-- name: session_standing
-- What operations must know of a session, and of the process that owns it.
SELECT sessions.operation, sessions.milestone, sessions.status, sessions.expected, sessions.process, processes.status,
    processes.host, processes.pid, processes.started, processes.bell
FROM sessions LEFT JOIN processes ON processes.id = sessions.process
WHERE sessions.id = $1;

-- name: session_continue
-- A session goes on in another process; NULL leaves what is there. The failures of before count no more.
UPDATE sessions SET
    status = 'active', process = $1, milestone = coalesce($2, milestone), expected = $3,
    metadata = coalesce($4, metadata), error = NULL, troubled = 0, resume_by = NULL, updated = $5
WHERE id = $6;

-- name: session_change
-- A session changes its status; once it is active again, the failures of before count no more.
UPDATE sessions SET
    status = $1, error = $2, updated = $3, ended = $4, process = $5, resume_by = NULL,
    troubled = CASE WHEN $1 = 'active' THEN 0 ELSE troubled END
WHERE id = $6;

-- name: session_disown
-- Nobody is in the block of a session any more.
UPDATE sessions SET process = NULL WHERE id = $1;

-- name: session_resume
-- An agent is at work in an interrupted session again.
UPDATE sessions SET status = 'active', error = NULL, updated = $1 WHERE id = $2 AND status = 'interrupted'
RETURNING id;

-- name: session_attended
-- Somebody came to a session that was resumed.
UPDATE sessions SET resume_by = NULL WHERE id = $1 AND resume_by IS NOT NULL;

-- name: session_await
-- Somebody must come to a session until a time (awake).
UPDATE sessions SET resume_by = $1 WHERE id = $2;

-- name: session_forget_deadlines
-- Awake time starts again after a reboot, and whoever was to come is gone.
UPDATE sessions SET resume_by = 0 WHERE ended IS NULL AND resume_by IS NOT NULL;

-- name: session_own_again
-- The owner of interrupted sessions is there after all; those of which an agent failed stay as they are.
UPDATE sessions SET status = 'active', error = NULL, updated = $1
WHERE ended IS NULL AND process = $2 AND status = 'interrupted' AND troubled = 0
RETURNING id;

-- name: session_reason
-- Why a session was interrupted.
UPDATE sessions SET error = $1 WHERE id = $2;

-- name: session_expected
-- The agents of a session that are only expected.
SELECT id FROM agents WHERE session = $1 AND status IN ('pending', 'spawning') ORDER BY id;

-- name: session_progress
-- How far a session is.
UPDATE sessions SET progress = $1, updated = $2 WHERE id = $3 AND ended IS NULL RETURNING id;

-- name: session_rewind
-- A session is as far as it was before.
UPDATE sessions SET progress = $1, updated = $2 WHERE id = $3;

-- name: session_touch
-- Something happened to a session that is not its own change.
UPDATE sessions SET updated = $1 WHERE id = $2;

-- name: session_get
-- All that is known of one session.
SELECT id, operation, milestone, status, progress, process, expected, metadata, created, updated, ended, error,
    status = 'active' AND troubled = 1
        AND EXISTS (SELECT 1 FROM agents WHERE agents.session = sessions.id AND agents.status = 'failed')
FROM sessions WHERE id = $1;

-- name: session_troubles
-- Active sessions of which an agent failed, whose owner is gone, or to which nobody came until $1 (awake): how many agents of
-- each are live, how many failed, whether its owner is gone, and how many of the live are only awaited.
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
-- Active sessions that were resumed, and to which nobody came until a time (awake).
SELECT id FROM sessions WHERE ended IS NULL AND status = 'active' AND process IS NULL AND resume_by <= $1;

-- name: session_counts
-- How many agents of a session there are of each status.
SELECT status, count(*) FROM agents WHERE session = $1 GROUP BY status;

-- name: session_cut_off
-- The sessions that were interrupted, the active ones of which an agent failed, and those in which nobody is left while work
-- waits for its agents: how many agents each has, how many of them are live (not only awaited) and how many failed; when something was last noted of it, of its agents, of its documents (wall), and when
-- a live agent of it last called (awake).
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
-- Open sessions in which nobody did anything since $1 (wall) and $2 (awake), the longest silent first. An agent that said
-- it would be silent until later than $3 (awake) is at work; that one was judged is nothing that it did.
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
-- One who takes part in a meeting.
INSERT INTO participants (session, meeting, member, position, created) VALUES ($1, $2, $3, $4, $5);

-- name: participant_list
-- Who takes part in a meeting, in their order, and who has finished with which result.
SELECT member, finished, result, checksum FROM participants WHERE session = $1 AND meeting = $2 ORDER BY position;

-- name: participant_get
-- Whether one who takes part has finished, and with which result.
SELECT member, finished, result, checksum FROM participants WHERE session = $1 AND meeting = $2 AND member = $3;

-- name: participant_finish
-- One who takes part has finished.
UPDATE participants SET finished = $1, result = $2, checksum = $3
WHERE session = $4 AND meeting = $5 AND member = $6;

-- name: participant_of_session
-- Who takes part in which meeting of a session.
SELECT meeting, member, position, created, finished, checksum, result FROM participants
WHERE session = $1
ORDER BY meeting, position;

-- name: participant_progress
-- The participants of each meeting of a session, and the time at which each has finished.
SELECT meeting, member, finished FROM participants WHERE session = $1 ORDER BY meeting, position;

-- name: participant_clear
-- Nobody takes part in any meeting of a session any more.
DELETE FROM participants WHERE session = $1;

-- name: participant_put
-- One who took part in a meeting, and may have finished.
INSERT INTO participants (session, meeting, member, position, created, finished, checksum, result)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8);

-- name: session_size
-- How many characters the values have that belong to a session ($2: its scope) at a time: its composite has more bytes.
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
-- A row if a summary has to look at more than $1: agents that did not complete, and interruptions.
SELECT 1 FROM agents WHERE status IN ('pending', 'spawning', 'running', 'suspect', 'failed', 'stopped')
UNION ALL
SELECT 1 FROM events WHERE kind = 'session_interrupted'
LIMIT 1 OFFSET $1;

-- name: recovery_interrupted
-- The sessions that are interrupted, the one that was cut off last first.
SELECT id FROM sessions WHERE ended IS NULL AND status = 'interrupted' ORDER BY updated DESC, id LIMIT $1;

-- name: recovery_agents
-- The agents after one that have not ended, and those of open sessions that failed or stopped, in the order of their ids.
SELECT id, name, type, kind, session, milestone, parent, capabilities, model, prompt, load, estimate, metadata,
    status, progress, note, process, epoch, patience, last_call, busy_until, created, started, updated, ended, error,
    evidence
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
-- Agents that are suspect, and those of open sessions that failed.
SELECT id, status, error FROM agents
WHERE status IN ('suspect', 'failed') AND (
    status = 'suspect'
    OR session IN (SELECT id FROM sessions WHERE ended IS NULL AND status IN ('active', 'paused', 'interrupted'))
)
ORDER BY status, id
LIMIT $1;

-- name: recovery_history
-- Every interruption, how and when its session went on or ended, and what became of it then.
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
-- The first session after one that ended before $2, or failed before $3; and about how large its participants and its
-- state are.
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
-- When a session ended.
SELECT ended FROM sessions WHERE id = $1;

-- name: session_left
-- When a session ended, and whether anything is left that must go before it.
SELECT ended,
    CASE WHEN EXISTS (SELECT 1 FROM agents WHERE agents.session = sessions.id)
        OR EXISTS (SELECT 1 FROM documents WHERE documents.session = sessions.id)
        OR EXISTS (SELECT 1 FROM checkpoints WHERE owner_kind IN ('session', 'composite') AND owner = sessions.id)
        OR EXISTS (SELECT 1 FROM tasks WHERE tasks.session = sessions.id)
    THEN 1 ELSE 0 END
FROM sessions WHERE id = $1;

-- name: session_delete
-- A session that has nothing left.
DELETE FROM sessions WHERE id = $1;

-- name: session_restore
-- An ended session from an archive.
INSERT INTO sessions (
    id, operation, milestone, status, progress, troubled, expected, metadata, error, created, updated, ended
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: session_same
-- Whether a session is the one that an archive has.
SELECT 1 FROM sessions WHERE id = $1 AND created = $2;

-- name: participant_restore
-- One who took part, from an archive.
INSERT INTO participants (session, meeting, member, position, created, finished, checksum, result)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT DO NOTHING
RETURNING member;

-- name: session_expecting
-- The newest sessions that were completed or cut off and expected documents.
SELECT id, expected FROM sessions
WHERE status IN ('completed', 'interrupted') AND expected <> '{}'
ORDER BY created DESC, id DESC
LIMIT $1;

-- name: session_after
-- Sessions in the order of their ids, after one.
SELECT id, 500 + length(metadata) FROM sessions WHERE id > $1 ORDER BY id LIMIT $2;

-- name: session_made
-- When a session began, and how it stands.
SELECT created, status FROM sessions WHERE id = $1;
