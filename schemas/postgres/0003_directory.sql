-- What a send looks up (who is there, which types are known, the quotas) seldom changes, and the changes are counted: whoever
-- remembers it can tell whether it still holds. Version 3, on PostgreSQL.
INSERT INTO counters (name, value) VALUES ('directory', 0);

-- Once in a transaction: thousands of agents may fail in one.
CREATE FUNCTION directory_changed() RETURNS trigger
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE counters SET value = value + 1
    WHERE name = 'directory' AND xmin <> CAST(pg_current_xact_id() AS xid);
    RETURN NULL;
END
$$;

-- Whether one that lives is suspected makes no difference to senders; beats change that, many at once.
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

-- Takes the lock of those who write beside others, as a transaction would at its beginning, and then looks whether the
-- directory is still this one. Whoever would have to wait for the lock has to take the time anew once it has it: not here.
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
