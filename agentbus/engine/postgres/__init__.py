"""The engine for a PostgreSQL server."""
