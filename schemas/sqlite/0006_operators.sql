-- People send messages as operator:NAME; agents with such ids get others. Version 6.
--
-- A new id replaces the prefix and has the same length: operator:ada becomes operator-ada. If a name on the bus starts with
-- operator- already, the first of operator. operator_ operator/ operator@ 00000001- 00000002- … that no name starts with is the
-- prefix of all of them, so that no two agents, mailboxes or scopes become one. The audit log gets an event agent_renamed for
-- each agent; earlier events, and snapshots that contain an id, stay as they were written.
PRAGMA defer_foreign_keys = ON;

INSERT INTO meta (key, value)
WITH RECURSIVE candidates (number, prefix) AS (
    SELECT 1, 'operator-'
    UNION ALL
    SELECT number + 1,
        CASE number WHEN 1 THEN 'operator.' WHEN 2 THEN 'operator_' WHEN 3 THEN 'operator/' WHEN 4 THEN 'operator@'
                    ELSE printf('%08d-', number - 4) END
    FROM candidates WHERE number < 99999999
)
SELECT 'operator_prefix', prefix FROM candidates
WHERE NOT EXISTS (SELECT 1 FROM mailboxes WHERE substr(name, 1, 9) = prefix OR substr(owner, 1, 9) = prefix)
    AND NOT EXISTS (SELECT 1 FROM state WHERE substr(scope, 1, 9) = prefix)
    AND NOT EXISTS (SELECT 1 FROM state_floors WHERE substr(scope, 1, 9) = prefix)
    AND NOT EXISTS (SELECT 1 FROM checkpoints WHERE substr(owner, 1, 9) = prefix)
    AND NOT EXISTS (SELECT 1 FROM messages WHERE substr(sender, 1, 9) = prefix)
LIMIT 1;

INSERT INTO events (at, kind, subject_kind, subject, facts)
SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER), 'agent_renamed', 'agent',
    (SELECT value FROM meta WHERE key = 'operator_prefix') || substr(id, 10), json_object('before', id)
FROM agents WHERE id GLOB 'operator:*' ORDER BY id;

-- A scope, an owner or a member is an agent only if an agent of that name has a mailbox, which is never deleted.
UPDATE state SET scope = (SELECT value FROM meta WHERE key = 'operator_prefix') || substr(scope, 10)
WHERE scope GLOB 'operator:*' AND EXISTS (SELECT 1 FROM mailboxes WHERE kind = 'agent' AND name = scope);
UPDATE state_floors SET scope = (SELECT value FROM meta WHERE key = 'operator_prefix') || substr(scope, 10)
WHERE scope GLOB 'operator:*' AND EXISTS (SELECT 1 FROM mailboxes WHERE kind = 'agent' AND name = scope);
UPDATE participants SET member = (SELECT value FROM meta WHERE key = 'operator_prefix') || substr(member, 10)
WHERE member GLOB 'operator:*' AND EXISTS (SELECT 1 FROM mailboxes WHERE kind = 'agent' AND name = member);
UPDATE sessions SET expected = (
    SELECT json_group_object(
        CASE WHEN each.key GLOB 'operator:*' AND EXISTS (SELECT 1 FROM mailboxes WHERE kind = 'agent' AND name = each.key)
             THEN (SELECT value FROM meta WHERE key = 'operator_prefix') || substr(each.key, 10) ELSE each.key END,
        each.value)
    FROM json_each(sessions.expected) AS each)
WHERE expected LIKE '%"operator:%';
UPDATE checkpoints SET owner = (SELECT value FROM meta WHERE key = 'operator_prefix') || substr(owner, 10)
WHERE owner_kind = 'agent' AND owner GLOB 'operator:*';

UPDATE state SET author = (SELECT value FROM meta WHERE key = 'operator_prefix') || substr(author, 10)
WHERE author GLOB 'operator:*';
UPDATE documents SET author = (SELECT value FROM meta WHERE key = 'operator_prefix') || substr(author, 10)
WHERE author GLOB 'operator:*';
UPDATE messages SET sender = (SELECT value FROM meta WHERE key = 'operator_prefix') || substr(sender, 10)
WHERE sender GLOB 'operator:*';
UPDATE messages SET holder = (SELECT value FROM meta WHERE key = 'operator_prefix') || substr(holder, 10)
WHERE holder GLOB 'operator:*';
UPDATE tasks SET holder = (SELECT value FROM meta WHERE key = 'operator_prefix') || substr(holder, 10)
WHERE holder GLOB 'operator:*';
UPDATE approvals SET notify = (SELECT value FROM meta WHERE key = 'operator_prefix') || substr(notify, 10)
WHERE notify GLOB 'operator:*';
UPDATE counters SET name = 'sent/' || (SELECT value FROM meta WHERE key = 'operator_prefix') || substr(name, 15)
WHERE name GLOB 'sent/operator:*';
UPDATE pool_members SET agent = (SELECT value FROM meta WHERE key = 'operator_prefix') || substr(agent, 10)
WHERE agent GLOB 'operator:*';
UPDATE subscriptions SET agent = (SELECT value FROM meta WHERE key = 'operator_prefix') || substr(agent, 10)
WHERE agent GLOB 'operator:*';
UPDATE workflows SET agent = (SELECT value FROM meta WHERE key = 'operator_prefix') || substr(agent, 10)
WHERE agent GLOB 'operator:*';
UPDATE mailboxes SET
    name = CASE WHEN kind = 'subscription' THEN name
                ELSE (SELECT value FROM meta WHERE key = 'operator_prefix') || substr(name, 10) END,
    owner = (SELECT value FROM meta WHERE key = 'operator_prefix') || substr(owner, 10)
WHERE owner GLOB 'operator:*';
UPDATE agents SET parent = (SELECT value FROM meta WHERE key = 'operator_prefix') || substr(parent, 10)
WHERE parent GLOB 'operator:*';
UPDATE agents SET
    name = CASE WHEN name = id THEN (SELECT value FROM meta WHERE key = 'operator_prefix') || substr(id, 10) ELSE name END,
    id = (SELECT value FROM meta WHERE key = 'operator_prefix') || substr(id, 10)
WHERE id GLOB 'operator:*';

DELETE FROM meta WHERE key = 'operator_prefix';

CREATE TRIGGER agents_are_no_operators BEFORE INSERT ON agents
WHEN NEW.id GLOB 'operator:*'
BEGIN
    SELECT RAISE(ABORT, 'operator: is for people');
END;

CREATE TRIGGER agents_become_no_operators BEFORE UPDATE OF id ON agents
WHEN NEW.id GLOB 'operator:*'
BEGIN
    SELECT RAISE(ABORT, 'operator: is for people');
END;
