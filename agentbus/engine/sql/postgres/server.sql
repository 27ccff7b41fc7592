-- name: server_facts
-- The version and encoding of the server, whether it is a standby, its time in milliseconds, whether the bus exists,
-- and whether its schema does. Reads the catalog tables: cached answers may be older than a lock that was waited for.
SELECT current_setting('server_version_num')::bigint, current_setting('server_version'),
    current_setting('server_encoding'), pg_is_in_recovery(),
    CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint),
    EXISTS (
        SELECT 1 FROM pg_class JOIN pg_namespace ON pg_namespace.oid = pg_class.relnamespace
        WHERE nspname = CAST($1 AS text) AND relname = 'migrations'
    ),
    EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = CAST($1 AS text));

-- name: server_session
-- The server process of this connection, and its search path.
SELECT pg_backend_pid(), current_setting('search_path');

-- name: server_settings
-- Apply settings that a pooler does not pass on: an object of names and values.
SELECT set_config(key, value, false) FROM json_each_text(CAST($1 AS json));

-- name: server_lock_concurrent
-- Take the lock of concurrent writers; returns the time of the server in milliseconds.
SELECT pg_advisory_xact_lock_shared(hashtextextended('agentbus bus ' || current_schema(), 0)),
    CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint);

-- name: server_lock_alone
-- Take the lock of an exclusive writer; returns the time of the server in milliseconds.
SELECT pg_advisory_xact_lock(hashtextextended('agentbus bus ' || current_schema(), 0)),
    CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint);

-- name: server_block_writers
-- Block all writers as long as this connection lasts.
SELECT pg_advisory_lock(hashtextextended('agentbus bus ' || current_schema(), 0));

-- name: server_unlock
-- Release the session locks of a failed statement: a rollback keeps them.
SELECT pg_advisory_unlock_all();

-- name: server_lock_migrations
-- Let one of several processes that open a bus migrate its schema.
SELECT pg_advisory_xact_lock(hashtextextended('agentbus migration ' || CAST($1 AS text), 0));

-- name: server_schema
-- Create the schema of the bus.
CREATE SCHEMA {schema};

-- name: server_migrations
-- Create the table of applied migrations.
CREATE TABLE migrations (version bigint NOT NULL PRIMARY KEY, applied timestamptz NOT NULL DEFAULT now());

-- name: server_version
-- The version of the schema.
SELECT coalesce(max(version), 0) FROM migrations;

-- name: server_migrated
-- Record a migration.
INSERT INTO migrations (version) VALUES ($1);

-- name: server_size
-- Bytes of all tables of the bus, with their indexes.
SELECT CAST(coalesce(sum(pg_total_relation_size(oid)), 0) AS bigint) FROM pg_class
WHERE relnamespace = CAST(quote_ident(current_schema()) AS regnamespace) AND relkind = 'r';

-- name: server_setting
-- A setting of the server, as this user sees it.
SELECT current_setting($1, true);

-- name: server_unguarded
-- Tables with a disabled trigger, and thereby a foreign key or a rule that is not enforced.
SELECT DISTINCT pg_class.relname::text FROM pg_trigger JOIN pg_class ON pg_class.oid = pg_trigger.tgrelid
WHERE pg_class.relnamespace = CAST(quote_ident(current_schema()) AS regnamespace) AND pg_trigger.tgenabled <> 'O';

-- name: server_unsound
-- Invalid indexes, and constraints that were not validated.
SELECT pg_class.relname::text FROM pg_index JOIN pg_class ON pg_class.oid = pg_index.indexrelid
WHERE pg_class.relnamespace = CAST(quote_ident(current_schema()) AS regnamespace) AND NOT pg_index.indisvalid
UNION ALL
SELECT conname::text FROM pg_constraint
WHERE connamespace = CAST(quote_ident(current_schema()) AS regnamespace) AND NOT convalidated;

-- name: server_oldest
-- The age of the oldest open transaction of this database in seconds, and its client.
SELECT CAST(extract(epoch FROM clock_timestamp() - xact_start) AS bigint), pid, application_name FROM pg_stat_activity
WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()
ORDER BY xact_start
LIMIT 1;

-- name: server_connections
-- The number of connections, and the limit.
SELECT (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
    CAST(current_setting('max_connections') AS bigint);

-- name: server_dead_rows
-- The number of live and of dead rows of messages.
SELECT n_live_tup, n_dead_tup FROM pg_stat_user_tables WHERE schemaname = current_schema() AND relname = 'messages';

-- name: server_question
-- One of several queries that run together.
q{number} ({columns}) AS MATERIALIZED ({sql});

-- name: server_answer
-- The rows of one query, with NULL for the columns of the others.
SELECT {number}, {values} FROM q{number};

-- name: server_several
-- Several queries as one statement.
WITH {questions} {answers};

-- name: server_numbered
-- Insert rows with numbers from a counter; returns the first number.
WITH taken AS MATERIALIZED (SELECT counter_take({counter}, {amount}) - {amount} AS before),
inserted AS (
    {insert} SELECT taken.before + item.number, {columns}
    FROM taken, unnest({lists}) WITH ORDINALITY AS item ({columns}, number)
)
SELECT before + 1 FROM taken;

-- name: server_numbered_one
-- Insert one row with the next number of a counter; returns the number.
{insert} VALUES (counter_take({counter}, 1), {values}) RETURNING id;

-- name: server_numbered_if_current
-- Insert one row with the next number of a counter, unless the directory has changed. A transaction of its own.
{insert} SELECT counter_take({counter}, 1), {values} WHERE directory_is({version}) RETURNING id;

-- name: server_change_directory
-- Keep a statement that compares the version of the directory from being carried out later.
UPDATE counters SET value = value + 1 WHERE name = 'directory';

-- name: server_written
-- Find a message whose INSERT lost its answer, and tell whether the result is certain: not on a server behind what this
-- process has seen, nor if messages were deleted since. Changes the directory, so that a late INSERT writes nothing.
WITH changed AS (UPDATE counters SET value = value + 1 WHERE name = 'directory')
SELECT
    (
        SELECT id FROM messages
        WHERE id > $1 AND mailbox = $2 AND sender = $3 AND type = $4 AND checksum = $5 AND created = $6
        ORDER BY id LIMIT 1
    ),
    (SELECT last_value >= $1 FROM message_ids) AND NOT EXISTS (
        SELECT 1 FROM events
        WHERE kind IN ('messages_purged', 'retention_applied', 'agent_deleted') AND at >= CAST($6 AS bigint) - 1000
    );
