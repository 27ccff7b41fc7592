-- Make a function that empties the bus in a schema and returns whether that was done. Its statements are its own, so that
-- they are planned once. The connection disables triggers and foreign keys: to do so discards all plans.
CREATE FUNCTION pg_temp.make_clear(schema text) RETURNS void LANGUAGE plpgsql AS $make$
DECLARE
    tables text[];
    sequences text[];
BEGIN
    SELECT array_agg(format('%I.%I', schema, relname)) INTO tables FROM pg_class
    WHERE relkind = 'r' AND relnamespace = schema::regnamespace
        AND relname NOT IN ('migrations', 'counters', 'vocabulary', 'meta');
    SELECT array_agg(format('%I.%I', schema, relname)) INTO sequences FROM pg_class
    WHERE relkind = 'S' AND relnamespace = schema::regnamespace;
    EXECUTE format(
        $function$
            CREATE FUNCTION pg_temp.%I() RETURNS boolean LANGUAGE plpgsql AS $body$
            DECLARE
                bytes bigint;
            BEGIN
                -- While a process has the bus open, its heartbeat could write into the bus of the next test.
                IF EXISTS (SELECT 1 FROM %2$I.processes WHERE status = 'live') THEN
                    RETURN false;
                END IF;
                SELECT sum(pg_relation_size(one)) INTO bytes FROM unnest(%3$L::regclass[]) AS one;
                IF bytes > 500000 THEN
                    -- What is deleted still takes room, and some tests look at how much there is.
                    TRUNCATE %4$s;
                ELSE
                    %5$s
                END IF;
                DELETE FROM %2$I.meta WHERE key <> 'bus';
                UPDATE %2$I.meta SET value = left(replace(gen_random_uuid()::text, '-', ''), 16);
                DELETE FROM %2$I.vocabulary WHERE builtin = 0;
                DELETE FROM %2$I.counters WHERE name NOT IN ('message', 'change', 'directory', 'history');
                UPDATE %2$I.counters SET value = 0;
                PERFORM setval(one, 1, false) FROM unnest(%6$L::regclass[]) AS one;
                RETURN true;
            END
            $body$
        $function$,
        'clear_' || schema, schema, tables, array_to_string(tables, ', '),
        'DELETE FROM ' || array_to_string(tables, '; DELETE FROM ') || ';', sequences
    );
END
$make$
