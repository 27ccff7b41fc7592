-- Empty the bus in a schema, without triggers and foreign keys, in whatever order; whether that was done.
CREATE FUNCTION pg_temp.clear(schema text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    name text;
    held boolean;
    bytes bigint;
BEGIN
    PERFORM set_config('search_path', quote_ident(schema), true);
    PERFORM set_config('session_replication_role', 'replica', true);
    EXECUTE $sql$ SELECT EXISTS (SELECT 1 FROM processes WHERE status = 'live') $sql$ INTO held;
    IF held THEN
        -- While a process has the bus open, its heartbeat could write into the bus of the next test.
        RETURN false;
    END IF;
    SELECT sum(pg_relation_size(oid)) INTO bytes FROM pg_class
    WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace;
    IF bytes > 500000 THEN
        -- What is deleted still takes room, and some tests look at how much there is.
        SELECT string_agg(quote_ident(relname), ', ') INTO name FROM pg_class
        WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace
            AND relname NOT IN ('migrations', 'counters', 'vocabulary', 'meta');
        EXECUTE 'TRUNCATE ' || name;
    END IF;
    FOR name IN SELECT relname FROM pg_class
        WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace
            AND relname NOT IN ('migrations', 'counters', 'vocabulary', 'meta')
    LOOP
        EXECUTE format('DELETE FROM %I', name);
    END LOOP;
    EXECUTE $sql$ DELETE FROM meta WHERE key <> 'bus' $sql$;
    EXECUTE $sql$ UPDATE meta SET value = left(replace(gen_random_uuid()::text, '-', ''), 16) $sql$;
    EXECUTE 'DELETE FROM vocabulary WHERE builtin = 0';
    EXECUTE $sql$ DELETE FROM counters WHERE name NOT IN ('message', 'change', 'directory') $sql$;
    EXECUTE 'UPDATE counters SET value = 0';
    FOR name IN SELECT relname FROM pg_class
        WHERE relkind = 'S' AND relnamespace = current_schema()::regnamespace
    LOOP
        PERFORM setval(name::regclass, 1, false);
    END LOOP;
    RETURN true;
END
$$
