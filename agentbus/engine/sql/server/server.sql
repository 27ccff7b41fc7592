-- name: server_facts
-- What must hold of a server: its version, its encoding, whether it only follows another one; its time, in milliseconds;
-- whether the bus has been made, and whether there is the schema to make it in. Read from the tables themselves: what the
-- server remembers of them may be older than the lock that was waited for.
SELECT current_setting('server_version_num')::bigint, current_setting('server_version'),
    current_setting('server_encoding'), pg_is_in_recovery(),
    CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint),
    EXISTS (
        SELECT 1 FROM pg_class JOIN pg_namespace ON pg_namespace.oid = pg_class.relnamespace
        WHERE nspname = CAST($1 AS text) AND relname = 'migrations'
    ),
    EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = CAST($1 AS text));

-- name: server_session
-- The server process of this connection, and the schemas that it searches for tables.
SELECT pg_backend_pid(), current_setting('search_path');

-- name: server_settings
-- Set what a pooler does not pass on when it connects: an object of names and values.
SELECT set_config(key, value, false) FROM json_each_text(CAST($1 AS json));

-- name: server_lock_beside
-- Write beside others that may too; and the server's time, in milliseconds.
SELECT pg_advisory_xact_lock_shared(hashtextextended('agentbus bus ' || current_schema(), 0)),
    CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint);

-- name: server_lock_alone
-- Write alone; and the server's time, in milliseconds.
SELECT pg_advisory_xact_lock(hashtextextended('agentbus bus ' || current_schema(), 0)),
    CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint);

-- name: server_keep_still
-- Let nobody write, as long as this connection lasts.
SELECT pg_advisory_lock(hashtextextended('agentbus bus ' || current_schema(), 0));

-- name: server_unlock
-- Let go of what a statement that failed held of the session: undoing a transaction leaves that as it is.
SELECT pg_advisory_unlock_all();

-- name: server_lock_migrations
-- Of several who open a bus at once, one brings its schema up to date.
SELECT pg_advisory_xact_lock(hashtextextended('agentbus migration ' || CAST($1 AS text), 0));

-- name: server_schema
-- The schema that the tables are in.
CREATE SCHEMA {schema};

-- name: server_migrations
-- Which versions the tables have been through.
CREATE TABLE migrations (version bigint NOT NULL PRIMARY KEY, applied timestamptz NOT NULL DEFAULT now());

-- name: server_version
-- The version of the tables.
SELECT coalesce(max(version), 0) FROM migrations;

-- name: server_migrated
-- The tables have another version.
INSERT INTO migrations (version) VALUES ($1);

-- name: server_size
-- Bytes of all tables of the bus, with their indexes.
SELECT CAST(coalesce(sum(pg_total_relation_size(oid)), 0) AS bigint) FROM pg_class
WHERE relnamespace = CAST(quote_ident(current_schema()) AS regnamespace) AND relkind = 'r';

-- name: server_setting
-- A setting of the server, as this user sees it.
SELECT current_setting($1, true);

-- name: server_unguarded
-- Tables of the bus of which somebody switched off a trigger, and with it a foreign key or a rule.
SELECT DISTINCT pg_class.relname::text FROM pg_trigger JOIN pg_class ON pg_class.oid = pg_trigger.tgrelid
WHERE pg_class.relnamespace = CAST(quote_ident(current_schema()) AS regnamespace) AND pg_trigger.tgenabled <> 'O';

-- name: server_unsound
-- Indexes that cannot be used, and constraints that not every row has been held against.
SELECT pg_class.relname::text FROM pg_index JOIN pg_class ON pg_class.oid = pg_index.indexrelid
WHERE pg_class.relnamespace = CAST(quote_ident(current_schema()) AS regnamespace) AND NOT pg_index.indisvalid
UNION ALL
SELECT conname::text FROM pg_constraint
WHERE connamespace = CAST(quote_ident(current_schema()) AS regnamespace) AND NOT convalidated;

-- name: server_oldest
-- Seconds since the oldest transaction of this database began that is still open, and whose it is.
SELECT CAST(extract(epoch FROM clock_timestamp() - xact_start) AS bigint), pid, application_name FROM pg_stat_activity
WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()
ORDER BY xact_start
LIMIT 1;

-- name: server_connections
-- How many connections there are, and how many there may be.
SELECT (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
    CAST(current_setting('max_connections') AS bigint);

-- name: server_dead_rows
-- How many rows of messages are there, and how many are dead but not yet swept away.
SELECT n_live_tup, n_dead_tup FROM pg_stat_user_tables WHERE schemaname = current_schema() AND relname = 'messages';

-- name: server_question
-- One of several questions that are asked together.
q{number} ({columns}) AS MATERIALIZED ({sql});

-- name: server_answer
-- What it came to, beside nothing for the others.
SELECT {number}, {values} FROM q{number};

-- name: server_several
-- All of them as one statement.
WITH {questions} {answers};

-- name: server_numbered
-- Rows with numbers from a counter, of which the first is told.
WITH taken AS MATERIALIZED (SELECT counter_take({counter}, {amount}) - {amount} AS before),
inserted AS (
    {insert} SELECT taken.before + item.number, {columns}
    FROM taken, unnest({lists}) WITH ORDINALITY AS item ({columns}, number)
)
SELECT before + 1 FROM taken;

-- name: server_numbered_one
-- One row with the next number of a counter, which is told.
{insert} VALUES (counter_take({counter}, 1), {values}) RETURNING id;

-- name: server_numbered_if_current
-- The same, unless the directory has changed: a transaction of its own.
{insert} SELECT counter_take({counter}, 1), {values} WHERE directory_is({version}) RETURNING id;

-- name: server_written
-- The message whose answer was lost, if it was written; and whether that can be told: not of a server that knows less than
-- this process has seen, nor where messages were removed since. The directory has changed after this: it will not be
-- written late.
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
