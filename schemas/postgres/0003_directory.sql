-- What a send looks up (agents, types, quotas) seldom changes. Changes are counted, so that a process that caches it can check
-- whether its copy is current. Version 3, on PostgreSQL.
INSERT INTO counters (name, value) VALUES ('directory', 0);

-- Once per transaction: thousands of agents may fail in one.
CREATE FUNCTION directory_changed() RETURNS trigger
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE counters SET value = value + 1
    WHERE name = 'directory' AND xmin <> CAST(pg_current_xact_id() AS xid);
    RETURN NULL;
END
$$;

-- Suspicion of a live agent does not matter to senders, and heartbeats change it for many agents at once.
CREATE TRIGGER agents_directory AFTER UPDATE ON agents FOR EACH ROW
WHEN (
    (
        OLD.status IS DISTINCT FROM NEW.status
        AND NOT (OLD.status IN ('running', 'suspect') AND NEW.status IN ('running', 'suspect'))
    )
    OR OLD.epoch IS DISTINCT FROM NEW.epoch
    OR OLD.mailbox IS DISTINCT FROM NEW.mailbox OR OLD.replies IS DISTINCT FROM NEW.replies
)
EXECUTE FUNCTION directory_changed();
CREATE TRIGGER agents_leave_directory AFTER DELETE ON agents FOR EACH STATEMENT EXECUTE FUNCTION directory_changed();
CREATE TRIGGER mailboxes_leave_directory AFTER DELETE ON mailboxes FOR EACH STATEMENT
EXECUTE FUNCTION directory_changed();
CREATE TRIGGER vocabulary_directory AFTER UPDATE ON vocabulary FOR EACH STATEMENT
EXECUTE FUNCTION directory_changed();
CREATE TRIGGER meta_directory AFTER INSERT OR UPDATE ON meta FOR EACH ROW WHEN (NEW.key = 'quotas')
EXECUTE FUNCTION directory_changed();
CREATE TRIGGER meta_leaves_directory AFTER DELETE ON meta FOR EACH ROW WHEN (OLD.key = 'quotas')
EXECUTE FUNCTION directory_changed();

-- Take the lock of concurrent writers, as a transaction does at its start, then check that the directory is unchanged. A caller
-- that would have to wait for the lock gets false: it must read the time again once it has the lock.
CREATE FUNCTION directory_is(version bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    present bigint;
BEGIN
    IF NOT pg_try_advisory_xact_lock_shared(hashtextextended('agentbus bus ' || current_schema(), 0)) THEN
        RETURN false;
    END IF;
    SELECT value INTO present FROM counters WHERE name = 'directory';
    RETURN present = version;
END
$$;
