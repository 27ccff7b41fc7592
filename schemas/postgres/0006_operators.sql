-- People send messages as operator:NAME; agents with such ids get others. Version 6, on PostgreSQL.
--
-- A new id replaces the prefix and has the same length: operator:ada becomes operator-ada. If a name on the bus starts with
-- operator- already, the first of operator. operator_ operator/ operator@ 00000001- 00000002- … that no name starts with is the
-- prefix of all of them, so that no two agents, mailboxes or scopes become one. The audit log gets an event agent_renamed for
-- each agent; earlier events, and snapshots that contain an id, stay as they were written.
DO $$
DECLARE
    prefix text := 'operator-';
    number bigint := 1;
BEGIN
    WHILE EXISTS (SELECT 1 FROM mailboxes WHERE left(name, 9) = prefix OR left(owner, 9) = prefix)
        OR EXISTS (SELECT 1 FROM state WHERE left(scope, 9) = prefix)
        OR EXISTS (SELECT 1 FROM state_floors WHERE left(scope, 9) = prefix)
        OR EXISTS (SELECT 1 FROM checkpoints WHERE left(owner, 9) = prefix)
        OR EXISTS (SELECT 1 FROM messages WHERE left(sender, 9) = prefix)
    LOOP
        prefix := CASE number WHEN 1 THEN 'operator.' WHEN 2 THEN 'operator_' WHEN 3 THEN 'operator/'
                              WHEN 4 THEN 'operator@' ELSE lpad(CAST(number - 4 AS text), 8, '0') || '-' END;
        number := number + 1;
    END LOOP;

    INSERT INTO events (at, kind, subject_kind, subject, facts)
    SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint), 'agent_renamed', 'agent',
        prefix || substr(id, 10), CAST(json_build_object('before', id) AS text)
    FROM agents WHERE id LIKE 'operator:%' ORDER BY id;

    -- A scope, an owner or a member is an agent only if an agent of that name has a mailbox, which is never deleted.
    UPDATE state SET scope = prefix || substr(scope, 10)
    WHERE scope LIKE 'operator:%' AND EXISTS (SELECT 1 FROM mailboxes WHERE kind = 'agent' AND name = scope);
    UPDATE state_floors SET scope = prefix || substr(scope, 10)
    WHERE scope LIKE 'operator:%' AND EXISTS (SELECT 1 FROM mailboxes WHERE kind = 'agent' AND name = scope);
    UPDATE participants SET member = prefix || substr(member, 10)
    WHERE member LIKE 'operator:%' AND EXISTS (SELECT 1 FROM mailboxes WHERE kind = 'agent' AND name = member);
    UPDATE sessions SET expected = (
        SELECT CAST(json_object_agg(
            CASE WHEN one.key LIKE 'operator:%'
                    AND EXISTS (SELECT 1 FROM mailboxes WHERE kind = 'agent' AND name = one.key)
                 THEN prefix || substr(one.key, 10) ELSE one.key END,
            one.value) AS text)
        FROM json_each_text(CAST(sessions.expected AS json)) AS one)
    WHERE expected LIKE '%"operator:%';
    UPDATE checkpoints SET owner = prefix || substr(owner, 10)
    WHERE owner_kind = 'agent' AND owner LIKE 'operator:%';

    UPDATE state SET author = prefix || substr(author, 10) WHERE author LIKE 'operator:%';
    UPDATE documents SET author = prefix || substr(author, 10) WHERE author LIKE 'operator:%';
    UPDATE messages SET sender = prefix || substr(sender, 10) WHERE sender LIKE 'operator:%';
    UPDATE messages SET holder = prefix || substr(holder, 10) WHERE holder LIKE 'operator:%';
    UPDATE tasks SET holder = prefix || substr(holder, 10) WHERE holder LIKE 'operator:%';
    UPDATE approvals SET notify = prefix || substr(notify, 10) WHERE notify LIKE 'operator:%';
    UPDATE counters SET name = 'sent/' || prefix || substr(name, 15) WHERE name LIKE 'sent/operator:%';

    -- The rows that refer to an agent follow it to the new id: a copy is inserted, they are moved, the old row is deleted.
    UPDATE mailboxes SET
        name = CASE WHEN kind = 'subscription' THEN name ELSE prefix || substr(name, 10) END,
        owner = prefix || substr(owner, 10)
    WHERE owner LIKE 'operator:%';
    UPDATE agents SET parent = prefix || substr(parent, 10) WHERE parent LIKE 'operator:%';
    CREATE TEMPORARY TABLE renamed ON COMMIT DROP AS SELECT * FROM agents WHERE id LIKE 'operator:%';
    UPDATE renamed SET name = CASE WHEN name = id THEN prefix || substr(id, 10) ELSE name END,
        id = prefix || substr(id, 10);
    INSERT INTO agents SELECT * FROM renamed;
    DROP TABLE renamed;
    UPDATE pool_members SET agent = prefix || substr(agent, 10) WHERE agent LIKE 'operator:%';
    UPDATE subscriptions SET agent = prefix || substr(agent, 10) WHERE agent LIKE 'operator:%';
    UPDATE workflows SET agent = prefix || substr(agent, 10) WHERE agent LIKE 'operator:%';
    DELETE FROM agents WHERE id LIKE 'operator:%';
END
$$;

ALTER TABLE agents ADD CONSTRAINT agents_are_no_operators CHECK (id NOT LIKE 'operator:%');
