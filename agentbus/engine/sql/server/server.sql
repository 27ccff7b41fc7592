-- name: server_facts
-- What must hold of a server: its version, its encoding, whether it only follows another one.
SELECT current_setting('server_version_num')::bigint, current_setting('server_version'),
    current_setting('server_encoding'), pg_is_in_recovery();

-- name: server_lock_beside
-- Write beside others that may too, from the server's time on, in milliseconds.
SELECT pg_advisory_xact_lock_shared(hashtextextended('agentbus bus ' || current_schema(), 0)),
    CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint);

-- name: server_lock_alone
-- Write alone, from the server's time on, in milliseconds.
SELECT pg_advisory_xact_lock(hashtextextended('agentbus bus ' || current_schema(), 0)),
    CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint);

-- name: server_time
-- The server's time in milliseconds.
SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint);

-- name: server_lock_migrations
-- Of several who open a bus at once, one brings its schema up to date.
SELECT pg_advisory_xact_lock(hashtextextended('agentbus migration ' || CAST($1 AS text), 0));

-- name: server_tables
-- Whether the bus has been made, and whether there is the schema to make it in.
SELECT to_regclass(quote_ident(CAST($1 AS text)) || '.migrations') IS NOT NULL,
    to_regnamespace(quote_ident(CAST($1 AS text))) IS NOT NULL;

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
WHERE relnamespace = CAST(current_schema() AS regnamespace) AND relkind = 'r';
