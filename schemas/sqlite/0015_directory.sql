-- What nearly every call looks up (agents, types, quotas, pools) seldom changes. Changes are counted, so that a process that
-- caches it can check by one number whether its copy is current. Unlike on PostgreSQL, additions count too, because answers
-- without a row are cached, and so does suspicion, because every call uses the cached status, not only sends. Version 15.
INSERT INTO counters (name, value) VALUES ('directory', 0);

CREATE TRIGGER agents_enter_directory AFTER INSERT ON agents
BEGIN
    UPDATE counters SET value = value + 1 WHERE name = 'directory';
END;

CREATE TRIGGER agents_change_directory AFTER UPDATE OF id, status, epoch, mailbox, replies ON agents
WHEN OLD.id <> NEW.id OR OLD.status <> NEW.status OR OLD.epoch <> NEW.epoch OR OLD.mailbox <> NEW.mailbox
    OR OLD.replies <> NEW.replies
BEGIN
    UPDATE counters SET value = value + 1 WHERE name = 'directory';
END;

CREATE TRIGGER agents_leave_directory AFTER DELETE ON agents
BEGIN
    UPDATE counters SET value = value + 1 WHERE name = 'directory';
END;

CREATE TRIGGER pools_enter_directory AFTER INSERT ON mailboxes WHEN NEW.kind = 'pool'
BEGIN
    UPDATE counters SET value = value + 1 WHERE name = 'directory';
END;

CREATE TRIGGER pools_change_directory AFTER UPDATE OF id, kind, name, owner ON mailboxes
WHEN OLD.kind = 'pool' OR NEW.kind = 'pool'
BEGIN
    UPDATE counters SET value = value + 1 WHERE name = 'directory';
END;

CREATE TRIGGER pools_leave_directory AFTER DELETE ON mailboxes WHEN OLD.kind = 'pool'
BEGIN
    UPDATE counters SET value = value + 1 WHERE name = 'directory';
END;

CREATE TRIGGER types_enter_directory AFTER INSERT ON vocabulary
BEGIN
    UPDATE counters SET value = value + 1 WHERE name = 'directory';
END;

CREATE TRIGGER types_change_directory AFTER UPDATE ON vocabulary
BEGIN
    UPDATE counters SET value = value + 1 WHERE name = 'directory';
END;

CREATE TRIGGER types_leave_directory AFTER DELETE ON vocabulary
BEGIN
    UPDATE counters SET value = value + 1 WHERE name = 'directory';
END;

CREATE TRIGGER quotas_enter_directory AFTER INSERT ON meta WHEN NEW.key = 'quotas'
BEGIN
    UPDATE counters SET value = value + 1 WHERE name = 'directory';
END;

CREATE TRIGGER quotas_change_directory AFTER UPDATE ON meta WHEN OLD.key = 'quotas' OR NEW.key = 'quotas'
BEGIN
    UPDATE counters SET value = value + 1 WHERE name = 'directory';
END;

CREATE TRIGGER quotas_leave_directory AFTER DELETE ON meta WHEN OLD.key = 'quotas'
BEGIN
    UPDATE counters SET value = value + 1 WHERE name = 'directory';
END;
